"""The error that a request ends with: file and range, what was tried, the last fault, a remedy."""

from __future__ import annotations

from typing import NamedTuple

from dataporter.errors import ShardChangedError, ShardError, ShardsNotFoundError, StorageError
from dataporter.shards.storage.faults import NO_CREDENTIALS, Fault, Kind

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
