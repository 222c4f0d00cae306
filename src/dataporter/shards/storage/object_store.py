"""Object stores and web servers, by obstore.

A store is made for a bucket or a host, and keys are made here: obstore decodes the paths of
URLs, which would change keys that contain "%". A version is the quoted ETag of a file. Where a
server sends none, it is the time of the last change.
"""

from __future__ import annotations

import base64
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import HTTPStore, from_url

from dataporter.errors import DataPorterError, MissingExtraError, OptionError
from dataporter.shards.storage.faults import (
    ChangedError,
    CutShortError,
    Kind,
    ListCutShortError,
    fault_of,
    first_line,
)
from dataporter.shards.storage.stored import WEB, StorageOptions, Stored, Url, is_url

if TYPE_CHECKING:  # they exist for type checkers only
    from obstore import GetOptions

_KEY = re.compile(r"key: '?(\w+)")  # in obstore's error about an option
# 405, "HEAD is not allowed", is a missing file to obstore.
_NOT_HEAD = frozenset({Kind.ABSENT, Kind.REFUSED, Kind.EXPIRED, Kind.PERMANENT})
_PLAIN = re.compile(r"[\w.~-]+(/[\w.~-]+)*", re.ASCII)  # obstore leaves such a path as it is
_PAGE = 1000  # files: as many as S3 lists in one answer
_EMPTY = 3  # lists without a file, after which there is none
_STORES = 256  # that are kept for signed URLs: one takes 11 ms and 115 kB


class ObjectStore:
    """Files below one URL."""

    def __init__(self, root: Url, options: StorageOptions) -> None:
        self._root = root
        self._options = options
        self._bucket, _, self._prefix = root.place.partition("/")
        self._web = root.scheme in WEB
        self.renew()

    def renew(self) -> None:
        self._store = _store(f"{self._root.scheme}://{self._bucket}", self._options)
        # For whole URLs, by login and URL, those that were used last at the end.
        self._stores: OrderedDict[tuple[str, str], Any] = OrderedDict()

    async def close(self) -> None:
        self._stores.clear()

    async def pages(self, prefix: str, after: str) -> AsyncIterator[list[Stored]]:
        if self._web:
            msg = (
                f"a web server does not list its files: {self._root}. Name the files: "
                'ShardedDataset(["https://…/a.parquet", "https://…/b.parquet"]).'
            )
            raise OptionError(msg)
        last = after
        for _ in range(_EMPTY):
            async for page in self._listed(prefix, after):
                yield page
                last = page[-1].path
            if last:
                break
        while last and (more := await self._beyond(prefix, last)):
            yield more
            last = more[-1].path

    async def _listed(self, prefix: str, after: str) -> AsyncIterator[list[Stored]]:
        below = f"{self._prefix}/" if self._prefix else ""
        offset = f"{below}{after}" if after else None
        async for page in obstore.list(
            self._store, f"{below}{prefix}", offset=offset, chunk_size=_PAGE
        ):
            yield [
                Stored(_below(below, meta["path"]), meta["size"], version_of(meta)) for meta in page
            ]

    async def _beyond(self, prefix: str, last: str) -> list[Stored]:
        """Return the files after the last one that was listed.

        To obstore an answer that is no list, such as an error with the status 200, is an empty
        page, and so the end. A list that names the last file again is one for certain.
        """
        files = [file async for page in self._listed(prefix, last[:-1]) for file in page]
        paths = [file.path for file in files]
        if last not in paths:
            raise ListCutShortError
        return files[paths.index(last) + 1 :]

    async def find(self, path: str) -> Stored:
        store, key = self._place(path)
        try:
            meta = await obstore.head_async(store, key)
        except Exception as error:
            # A URL that was signed for GET refuses HEAD, and some servers do not answer it.
            if not self._web or fault_of(error, self._options).kind not in _NOT_HEAD:
                raise
            answer = await obstore.get_async(store, key, options={"range": (0, 1)})
            meta = answer.meta
        return Stored(path, meta["size"], version_of(meta))

    async def get(self, file: Stored, start: int, stop: int) -> memoryview:
        store, key = self._place(file.path)
        options: GetOptions = {"range": (start, stop)}
        if file.version.startswith('"'):
            options["if_match"] = file.version
        answer = await obstore.get_async(store, key, options=options)
        _require_same(file, answer.meta)
        data = memoryview(await answer.bytes_async())
        if len(data) != stop - start:
            raise CutShortError
        return data

    def _place(self, path: str) -> tuple[Any, str]:
        """Return the store and the key of a file."""
        key = f"{self._prefix}/{path}" if self._prefix else path
        if not self._web:
            return self._store, key
        url = self._root / path
        full = self._options.full_urls.get(url.place)
        if _PLAIN.fullmatch(key):
            return self._store if full is None else self._store_for(full, f"/{key}"), key
        if full is None and "//" not in key:
            return self._store, unquote(key)
        return self._store_for(full or str(url), ""), ""  # a signature is over the path as it is

    def _store_for(self, url: str, path: str) -> Any:
        """Return the store for a whole URL without its path: many have the same query."""
        parts = urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        base = parts._replace(netloc=host, path=parts.path.removesuffix(path) or "/", fragment="")
        if (store := self._stores.pop((login, base.geturl()), None)) is None:
            store = _store(base.geturl(), self._options, login)
        self._stores[login, base.geturl()] = store
        while len(self._stores) > _STORES:
            self._stores.popitem(last=False)
        return store


def _below(folder: str, path: str) -> str:
    """Return a path relative to a folder; nothing if it is the object that stands for the folder.

    >>> _below("a/", "a/b/c"), _below("a/", "a"), _below("", "a")
    ('b/c', '', 'a')
    """
    return f"{path}/".removeprefix(folder).rstrip("/")


def version_of(meta: Any) -> str:
    """Return what tells that a file was written again.

    A weak ETag is compared and not sent, since a server never matches it.
    """
    if tag := meta["e_tag"]:
        return str(tag) if tag.startswith(('"', "W/")) else f'"{tag}"'  # Azure lists them bare
    changed: datetime = meta["last_modified"]
    return changed.isoformat() if changed.timestamp() else ""


def _require_same(file: Stored, meta: Any) -> None:
    """Raise unless an answer came from the file that was listed: some servers ignore If-Match."""
    if meta["size"] != file.size:
        msg = f"it has {meta['size']:,} bytes, and had {file.size:,}"
        raise ChangedError(msg)
    if (version := version_of(meta)) != file.version:
        of = "ETag" if version.startswith(('"', "W/")) else "time of change"
        msg = f"it has another {of}"
        raise ChangedError(msg)


def _store(url: str, options: StorageOptions, login: str = "") -> Any:
    """Make a store. Its errors show values of options, so none of them goes along."""
    given = dict(options.given)
    client = {
        "timeout": f"{max(60, round(options.patience))}s",
        # Bytes must come so often: a server that has stalled is known while little else is.
        "read_timeout": f"{round(3000 * options.least_timeout)}ms",
        **given.pop("client_options", {}),
    }
    if url.startswith("http://") or _endpoint(given).startswith("http://"):
        client.setdefault("allow_http", True)
    if login:
        secret = base64.b64encode(unquote(login).encode()).decode()
        headers = {"Authorization": f"Basic {secret}", **client.get("default_headers", {})}
        client["default_headers"] = headers
    fixed: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    try:
        if url.startswith(("http://", "https://")):
            return _web_store(url, given, fixed)
        _require_scheme(_endpoint(given))
        if url.startswith(("s3:", "s3a:")) and _has_profile(given):
            given["credential_provider"] = _profile()
        return from_url(url, **{**given, **fixed})
    except DataPorterError:
        raise
    except Exception as error:  # noqa: BLE001  obstore raises its own, boto3 many
        msg = _words_of(error, options)
    raise OptionError(msg)


def _require_scheme(endpoint: str) -> None:
    """Refuse an end point such as "localhost:9000", at which obstore panics."""
    if endpoint and not is_url(endpoint):
        found = endpoint.rpartition("@")[2]
        msg = f"the end point must begin with http:// or https://, found {found!r}."
        raise OptionError(msg)


def _web_store(url: str, given: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
    if given:
        raise OptionError(_unknown(next(iter(given))))
    return HTTPStore(url, **fixed)


def _words_of(error: Exception, options: StorageOptions) -> str:
    """Say why a store could not be made, without the values of options."""
    if named := _KEY.search(str(error)):
        return _unknown(named[1])
    if "Account must be specified" in str(error):
        return (
            "the account of this storage is not given. Set AZURE_STORAGE_ACCOUNT_NAME, or "
            'storage_options={"account_name": …}.'
        )
    if type(error).__module__.startswith("botocore") or "get_credentials" in str(error):
        return (
            "the credentials of AWS_PROFILE or of the shared credentials file cannot be used: "
            f"{first_line(str(error), options)}. Correct them, or give others by storage_options."
        )
    words = first_line(str(error), options)
    return f"storage_options, or the environment in their place, has a bad value: {words}."


def _unknown(name: str) -> str:
    return (
        f"storage_options has an option that this storage does not take: {name!r}. It takes what "
        "obstore's store for this scheme takes."
    )


def _endpoint(given: dict[str, Any]) -> str:
    """Return the end point that obstore will use."""
    named = {**given.get("config", {}), **given}
    for name in ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url"):
        if name in named:
            return str(named[name])
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT"):
        if os.environ.get(name):
            return os.environ[name]
    return ""


def _has_profile(given: dict[str, Any]) -> bool:
    """Return True if a profile of AWS's tools gives the credentials: no key is given directly."""
    named = {**given.get("config", {}), **given}
    direct = any("key" in name or "credential" in name or "skip" in name for name in named)
    if direct or "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return False
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    if find_spec("boto3") is not None:
        return "AWS_PROFILE" in os.environ or Path(file).expanduser().exists()
    if "AWS_PROFILE" in os.environ:
        msg = "AWS_PROFILE needs boto3, which is not installed: pip install boto3."
        raise MissingExtraError(msg)
    return False


def _profile() -> Any:
    """Return a provider of a profile's credentials, which reads their file now."""
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  it needs boto3

    return Boto3CredentialProvider()
