"""Errors of storage libraries, as the few kinds of faults that are told apart, in plain words.

obstore shows the status of an answer only in the text of its error, and no headers. Its texts
contain whole URLs, so a message is made of the status and of known words. What has neither is
shown without the secrets that are known: values of options, logins and queries of URLs.

A request that is given up ends with `error_of`: file and range, what was tried, the last fault, a
remedy.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from dataporter.errors import ShardChangedError, ShardError, ShardsNotFoundError, StorageError
from dataporter.shards.storage.stored import StorageOptions

_LOGIN = re.compile(r"(\w://)[^/\s@]*@")
_QUERY = re.compile(r"\?\S+")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|SAS")  # in names of the environment
_LEAST = 6  # characters of a value: a shorter one is part of many words
_LONGEST = 200  # characters that are shown


def first_line(text: str, options: StorageOptions) -> str:
    r"""Return the first line of a text, without secrets.

    >>> options = StorageOptions(given={"token": "s3cret-1"})
    >>> first_line("no s3cret-1 at https://me:pw@example.com/a?signature=1\nmore", options)
    'no … at https://example.com/a'
    """
    line = text.strip().partition("\n")[0]
    line = _QUERY.sub("", _LOGIN.sub(r"\1", line))
    for value in sorted(_values(options), key=len, reverse=True):
        line = line.replace(value, "…")
    return line[:_LONGEST].rstrip(" .")


def _values(options: StorageOptions) -> set[str]:
    """Return all values that may be secret."""
    named = (value for name, value in os.environ.items() if _SECRET.search(name))
    return {value for value in (*named, *_strings(options.given)) if len(value) >= _LEAST}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from _strings(each)


class Kind(Enum):
    """The way in which a fault is met."""

    ABSENT = "absent"  # there is no such file
    CHANGED = "changed"  # it is not the file that was listed
    EXPIRED = "expired"  # the credentials were right, and may be again once they are renewed
    REFUSED = "refused"  # the credentials lack a permission
    SKEWED = "skewed"  # the signature has another time than the server
    THROTTLED = "throttled"  # too many requests: try again, and fewer at a time
    TRANSIENT = "transient"  # try again
    NO_RANGES = "no ranges"  # a whole file, or an error as if all was well, in place of a range
    UNKNOWN_HOST = "unknown host"  # a misspelled name, or a short trouble of the resolver
    PERMANENT = "permanent"  # it fails however often it is tried


class Fault(NamedTuple):
    """A failed request."""

    kind: Kind
    words: str
    retry_after: float = 0.0  # seconds that the server asks for
    remedy: str = ""  # of a permanent fault


class ChangedError(Exception):
    """An answer came from another version of a file. The text says which."""


class CutShortError(Exception):
    """An answer has fewer bytes than were asked for."""


class ListCutShortError(Exception):
    """A list of files ended early, or was none."""


_STATUS = re.compile(r"status code: (\d{3})([A-Za-z ]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>|\"code\":\s*\"(\w+)\"")
_RETRY_AFTER = re.compile(r"retry-after\W{1,4}(\d+)", re.IGNORECASE)
_EXPIRED = re.compile(r"Expired|InvalidToken|TokenRefreshRequired|InvalidAccessKeyId", re.ASCII)
# Of S3, of Azure, of AWS's tokens, and of Google's.
_SKEWED = re.compile(
    r"RequestTimeTooSkewed|date header too old|Signature (expired|not yet current)|iat and exp"
)
# A key, and the part of it that obstore does not read.
_ODD_KEY = re.compile(
    r'Path "(.+?)"(?: contained empty path|: Encountered illegal character sequence "(.+?)")',
    re.DOTALL,
)
_THROTTLED = {429, 503}
_TRANSIENT = {408, 425, 500, 502, 504, 509, 520, 521, 522, 523, 524, 529}

_FORBIDDEN = Fault(Kind.REFUSED, "access was refused")
_NO_HOST = Fault(Kind.UNKNOWN_HOST, "the name of the server was not found")
_REFUSED = Fault(Kind.TRANSIENT, "the connection was refused")
_CUT_SHORT = Fault(Kind.TRANSIENT, "the answer was cut short")
_NO_LIST = Fault(Kind.TRANSIENT, "the list of files was cut short")
NOT_A_RANGE = Fault(Kind.TRANSIENT, "the answer was not the range that was asked for")
NO_CREDENTIALS = Fault(Kind.REFUSED, "no credentials were found")
LATE = Fault(Kind.TRANSIENT, "no answer came in time")
_BROKEN = Fault(Kind.TRANSIENT, "the connection failed")
_NO_RANGES = Fault(
    Kind.NO_RANGES,
    "the server does not send ranges of a file",
    remedy="Copy the files to a disk, or to a storage that does.",
)
_NOT_TRUSTED = Fault(
    Kind.PERMANENT,
    "the certificate of the server is not trusted",
    remedy='Give its root: storage_options={"client_options": {"root_certificate": …}}.',
)
_NOT_IN_TIME = Fault(
    Kind.PERMANENT,
    "the certificate of the server has expired or is not valid yet, by the clock of this machine",
    remedy="Set the clock, or renew the certificate.",
)
_PLAIN_HTTP = Fault(
    Kind.PERMANENT,
    "the end point begins with http://",
    remedy='Allow it: storage_options={"client_options": {"allow_http": True}}.',
)
_OTHER_REGION = Fault(
    Kind.PERMANENT,
    "the bucket lies in another region",
    remedy='Set AWS_REGION, or storage_options={"region": …}.',
)
_ERRORS: dict[type[BaseException], Fault] = {
    CutShortError: _CUT_SHORT,
    ListCutShortError: _NO_LIST,
    FileNotFoundError: Fault(Kind.ABSENT, "there is no such file"),
    PermissionError: _FORBIDDEN,
    TimeoutError: LATE,
    asyncio.TimeoutError: LATE,  # another one before Python 3.11
}
_SIGNS = {  # in the texts of errors; the first one found counts
    "dns error": _NO_HOST,
    "Name or service not known": _NO_HOST,
    "getaddrinfo": _NO_HOST,
    "ExpiredContext": _NOT_IN_TIME,
    "NotValidYetContext": _NOT_IN_TIME,
    "certificate has expired": _NOT_IN_TIME,
    "certificate is not yet valid": _NOT_IN_TIME,
    "InvalidCertificate": _NOT_TRUSTED,
    "CERTIFICATE_VERIFY_FAILED": _NOT_TRUSTED,
    "Range request not supported": _NO_RANGES,
    "non-partial response": _NO_RANGES,
    "invalid list response": _NO_LIST,
    "URL scheme is not allowed": _PLAIN_HTTP,
    "redirect without LOCATION": _OTHER_REGION,
    "ConnectionRefused": _REFUSED,
    "Connection refused": _REFUSED,
    "ConnectionReset": Fault(Kind.TRANSIENT, "the connection was reset"),
    "IncompleteBody": _CUT_SHORT,
    "UnexpectedEof": _CUT_SHORT,
    "UnexpectedRange": _CUT_SHORT,
    "IncompleteMessage": Fault(Kind.TRANSIENT, "the connection was closed"),
    "TimedOut": LATE,
    "Timeout": LATE,
    "HttpError": _BROKEN,
    "reqwest::Error": _BROKEN,
}
# Classes of errors, by name, since their libraries need not be installed.
_CLASSES = {
    "error_temp": Fault(Kind.TRANSIENT, "the server asks to try again later"),  # of ftplib
    "error_proto": _BROKEN,
    "error_reply": _BROKEN,
    "TransportError": _BROKEN,  # of httpx
    "ClientConnectionError": _BROKEN,  # of aiohttp
    "ClientPayloadError": _CUT_SHORT,
    "JSONDecodeError": Fault(Kind.TRANSIENT, "the answer was no JSON"),  # of Hugging Face
    "AuthenticationException": _FORBIDDEN,  # of paramiko
    "SSHException": _BROKEN,
}
_FTP_LOGIN = re.compile(r"53[0-2]\b")
# Places that give credentials to machines in a cloud. One that fails is no fault of the storage.
_METADATA = re.compile(
    r"169\.254\.169\.254|169\.254\.170\.|metadata\.google\.internal"
    r"|http://[^/\s]+/(latest/api/token|latest/meta-data/|computeMetadata/|metadata/identity/)"
)


def fault_of(error: BaseException, options: StorageOptions | None = None) -> Fault:
    """Say what kind of fault an error is.

    >>> fault_of(RuntimeError("… non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>"))
    Fault(kind=<Kind.THROTTLED: 'throttled'>, words='the server answered 503 Service Unavailable (SlowDown)', retry_after=0.0, remedy='')
    """  # noqa: E501
    text = str(error)
    if isinstance(error, ChangedError):
        return Fault(Kind.CHANGED, text)
    for known, fault in _ERRORS.items():
        if isinstance(error, known):
            return fault
    if _METADATA.search(text):
        return NO_CREDENTIALS
    if (status := _status(error, text)) is not None:
        return _fault_of_status(status, text, error)
    if (odd := _ODD_KEY.search(text)) is not None:
        part = repr(odd[2]) if odd[2] else "an empty part"
        return Fault(
            Kind.PERMANENT,
            f"the key {odd[1]!r} has {part}, which obstore does not read",
            remedy="Rename the object, or name files or folders without such keys.",
        )
    if (found := _known_fault(error, text)) is not None:
        return found
    words = first_line(text, options or StorageOptions())
    return Fault(Kind.PERMANENT, f"{type(error).__name__}: {words}")


def _known_fault(error: BaseException, text: str) -> Fault | None:
    """Find a fault by the words of an error, or by its class."""
    for sign, fault in _SIGNS.items():
        if sign in text:
            return fault
    names = [each.__name__ for each in type(error).__mro__]
    for name, fault in _CLASSES.items():
        if name in names:
            return fault
    if "error_perm" in names and _FTP_LOGIN.match(text):
        return _FORBIDDEN
    return _BROKEN if isinstance(error, EOFError | OSError) else None


def _status(error: BaseException, text: str) -> int | None:
    """Find the status of an HTTP answer: in an error of aiohttp or requests, or in the text."""
    for owner in (error, getattr(error, "response", None)):
        for name in ("status", "status_code"):
            if isinstance(status := getattr(owner, name, None), int):
                return status
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def _fault_of_status(status: int, text: str, error: BaseException) -> Fault:
    found, code = _STATUS.search(text), _CODE.search(text)
    reason = found[2].rstrip() if found else ""
    words = f"the server answered {status}{reason}" + (f" ({code[1] or code[2]})" if code else "")
    if status in {404, 410}:
        return Fault(Kind.ABSENT, words)
    if status in {412, 416}:
        return Fault(Kind.CHANGED, words)
    if status in {400, 403} and _SKEWED.search(text):
        return Fault(Kind.SKEWED, f"{words}: the clock of this machine differs from the server's")
    if status == 401 or (status in {400, 403} and _EXPIRED.search(text)):  # noqa: PLR2004
        return Fault(Kind.EXPIRED, words)
    if status in {403, 407}:
        return Fault(Kind.REFUSED, words)
    if status in _THROTTLED:
        return Fault(Kind.THROTTLED, words, _retry_after(error, text))
    if status in _TRANSIENT or "RequestTimeout" in text:
        return Fault(Kind.TRANSIENT, words)
    return Fault(Kind.PERMANENT, words)


def _retry_after(error: BaseException, text: str) -> float:
    """Return the seconds of a Retry-After header: aiohttp shows headers, obstore does not."""
    for owner in (error, getattr(error, "response", None)):
        value = (getattr(owner, "headers", None) or {}).get("Retry-After", "")
        if str(value).isdigit():
            return float(value)
    found = _RETRY_AFTER.search(text)
    return float(found[1]) if found else 0.0


_AWS = (
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, the profile in AWS_PROFILE "
    "(by boto3), or storage_options"
)
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS or storage_options"
_AZURE = "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or storage_options"
_WEB = "the signed URLs, or the headers in storage_options"
_CREDENTIALS = {
    "s3": _AWS, "s3a": _AWS, "gs": _GOOGLE, "az": _AZURE, "adl": _AZURE, "azure": _AZURE,
    "abfs": _AZURE, "abfss": _AZURE, "http": _WEB, "https": _WEB, "hf": "HF_TOKEN",
}  # fmt: skip


class Failure(NamedTuple):
    """A request that is not tried again."""

    what: str  # the file and the range
    scheme: str
    fault: Fault
    tries: int
    seconds: float
    others: float = 0.0  # seconds for which other requests for the same data had failed before


def error_of(failure: Failure) -> ShardError:
    """Return the error to raise.

    >>> fault = Fault(Kind.THROTTLED, "the server answered 503 Service Unavailable (SlowDown)")
    >>> print(error_of(Failure("bytes 0 to 9 of s3://bucket/a.parquet", "s3", fault, 7, 300.0)))
    a storage did not give bytes 0 to 9 of s3://bucket/a.parquet: the server answered 503 Service \
Unavailable (SlowDown). It was tried 7 times in 300 s. The storage asks for fewer requests: use \
fewer processes, or ask its operator for a higher limit.
    """
    fault = failure.fault
    if fault.kind is Kind.CHANGED:
        msg = (
            f"a file changed after it was listed: {failure.what}: {fault.words}. Put the file "
            "back, or build the dataset anew, which indexes the file again; a state of the old "
            "data is refused then."
        )
        return ShardChangedError(msg)
    what = f"a storage did not give {failure.what}: {fault.words}.{_tried(failure)}"
    msg = f"{what} {_remedy(fault, failure.scheme)}".rstrip()
    return ShardsNotFoundError(msg) if fault.kind is Kind.ABSENT else StorageError(msg)


def _tried(failure: Failure) -> str:
    seconds = f"{failure.seconds:,.0f} s"
    if not failure.tries:
        return f" It waited {seconds} for its turn, while others were tried."
    times = f"{failure.tries:,} times in {seconds}" if failure.tries > 1 else ""
    if failure.others >= 1:
        others = f"after others for the same data had failed for {failure.others:,.0f} s"
        return f" It was tried {times or 'once'}, {others}."
    return f" It was tried {times}." if times else ""


def _remedy(fault: Fault, scheme: str) -> str:
    where = _CREDENTIALS.get(scheme, "storage_options")
    if fault == NO_CREDENTIALS:
        public = 'storage_options={"skip_signature": True}'
        return f"Give some: {where}. Data that is public needs {public}."
    return {
        Kind.ABSENT: "Check the name of the bucket and of the file.",
        Kind.SKEWED: "Set the clock, as by NTP: requests are signed with its time.",
        Kind.EXPIRED: f"Renew the credentials: {where}.",
        Kind.REFUSED: f"Use credentials that may list and read it: {where}.",
        Kind.THROTTLED: (
            "The storage asks for fewer requests: use fewer processes, or ask its operator for a "
            "higher limit."
        ),
        Kind.TRANSIENT: (
            "Check that the server is up and can be reached from this machine, then start again: "
            "a resume continues at the same sample."
        ),
        Kind.UNKNOWN_HOST: "Check the spelling of the URL and of the end point.",
        Kind.NO_RANGES: fault.remedy,
        Kind.PERMANENT: fault.remedy,
    }.get(fault.kind, "")
