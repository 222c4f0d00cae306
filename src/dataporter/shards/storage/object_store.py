"""Object stores and web servers, by obstore.

A store is made for a bucket or a host, and keys are made here: obstore decodes the paths of
URLs, which would change keys that contain "%". A version is the quoted ETag of a file. Where a
server sends none, it is the time of the last change.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

import obstore
from obstore.exceptions import BaseError
from obstore.store import HTTPStore, from_url

from dataporter.errors import OptionError
from dataporter.shards.storage.faults import ChangedError, CutShortError, Kind, fault_of
from dataporter.shards.storage.options import StorageOptions
from dataporter.shards.storage.stored import Stored
from dataporter.shards.storage.urls import Url

if TYPE_CHECKING:  # they exist for type checkers only
    from obstore import GetOptions

_KEY = re.compile(r"key: '?(\w+)")  # in obstore's error about an option
_WEB = frozenset({"http", "https"})


class ObjectStore:
    """Files below one URL."""

    def __init__(self, root: Url, options: StorageOptions) -> None:
        self._root = root
        self._options = options
        self._bucket, _, self._prefix = root.place.partition("/")
        self._web = root.scheme in _WEB
        self.renew()

    def renew(self) -> None:
        self._store = _store(f"{self._root.scheme}://{self._bucket}", self._options)
        self._stores: dict[str, Any] = {}  # one for each URL with a query

    async def close(self) -> None:
        self._stores = {}

    async def pages(self, prefix: str, after: str) -> AsyncIterator[list[Stored]]:
        if self._web:
            msg = (
                f"a web server does not list its files: {self._root}. Name the files: "
                'ShardedDataset(["https://…/a.parquet", "https://…/b.parquet"]).'
            )
            raise OptionError(msg)
        below = f"{self._prefix}/" if self._prefix else ""
        offset = f"{below}{after}" if after else None
        async for page in obstore.list(self._store, f"{below}{prefix}", offset=offset):
            yield [
                Stored(meta["path"].removeprefix(below), meta["size"], version_of(meta))
                for meta in page
            ]

    async def find(self, path: str) -> Stored:
        store, key = self._place(path)
        try:
            meta = await obstore.head_async(store, key)
        except Exception as error:
            # A URL that was signed for GET refuses HEAD, and some servers do not know it.
            if not self._web or fault_of(error).kind not in {Kind.REFUSED, Kind.PERMANENT}:
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
        if (url := self._options.full_urls.get(path)) is not None:
            if path not in self._stores:
                self._stores[path] = _store(url, self._options)
            return self._stores[path], ""
        key = f"{self._prefix}/{path}" if self._prefix else path
        return self._store, unquote(key) if self._web else key


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


def _store(url: str, options: StorageOptions) -> Any:
    given = dict(options.given)
    client = {"timeout": f"{max(60, round(options.patience))}s", **given.pop("client_options", {})}
    if url.startswith("http://") or _endpoint(given).startswith("http://"):
        client.setdefault("allow_http", True)
    fixed: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    try:
        if url.startswith(("http://", "https://")):
            if given:
                _refuse(next(iter(given)))
            return HTTPStore(url, **fixed)
        if url.startswith(("s3:", "s3a:")) and _has_profile(given):
            given["credential_provider"] = _profile()
        return from_url(url, **{**given, **fixed})
    except (BaseError, ValueError, TypeError) as error:
        if not isinstance(error, OptionError):
            named = _KEY.search(str(error))
            _refuse(named[1] if named else "")
        raise


def _refuse(name: str) -> NoReturn:
    """Name an option that obstore does not take, never its value."""
    what = f"an option that this storage does not take: {name!r}" if name else "a bad value"
    msg = f"storage_options has {what}. It takes what obstore's store for this scheme takes."
    raise OptionError(msg) from None


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
    if find_spec("boto3") is None:
        return False
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    return "AWS_PROFILE" in os.environ or Path(file).expanduser().exists()


def _profile() -> Any:
    """Return a provider of a profile's credentials, which reads their file now."""
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  it needs boto3

    return Boto3CredentialProvider()
