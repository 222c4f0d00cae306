"""Every storage that obstore does not know, by fsspec: hf://, ftp://, sftp:// and others.

A blocking file system runs in threads, and each thread has its own: some, such as FTP's, hold
one connection. Their answers carry no version, so the version of a file is asked for again when
some time has passed; until then a file system may take it from the list of a folder that it
keeps, since many have no other way to ask. What a file system retries on its own, as that of
Hugging Face does, is part of one try.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fsspec import AbstractFileSystem, get_filesystem_class
from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs

from dataporter.errors import MissingExtraError, OptionError
from dataporter.shards.storage.faults import ChangedError, CutShortError, first_line
from dataporter.shards.storage.stored import StorageOptions, Stored, Url

T = TypeVar("T")

_THREADS = 8  # servers of FTP and SFTP allow few connections
_TRUSTED = 30.0  # seconds for which versions, and lists of folders, are taken to be unchanged
# Names under which file systems give a version, the most telling first.
_VERSIONS = (
    "ETag", "etag", "sha256", "md5Hash", "md5", "checksum", "blob_id", "generation", "mtime",
    "modified", "modify", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip


class FileSystem:
    """Files below one URL."""

    def __init__(self, root: Url, options: StorageOptions) -> None:
        self._root = root
        self._options = options
        self._given = dict(options.given)
        self._pool = ThreadPoolExecutor(min(_THREADS, options.max_requests), "dataporter-fsspec")
        self._checked: dict[str, float] = {}  # when the version of a file was asked for
        try:
            kind = get_filesystem_class(root.scheme)
        except ImportError as error:
            msg = f"{root.scheme}:// needs a package that is not installed: {error}."
            raise MissingExtraError(msg) from error
        except ValueError as error:
            msg = f"no library here reads {root.scheme}:// URLs. Copy the files elsewhere."
            raise OptionError(msg) from error
        for url in options.full_urls.values():  # a user name, and perhaps a password
            self._given = {**kind._get_kwargs_from_urls(url), **self._given}  # noqa: SLF001  fsspec's protocol
        self._asynchronous = issubclass(kind, AsyncFileSystem)
        self._folder = kind._strip_protocol(str(root)).rstrip("/")  # noqa: SLF001  likewise
        self.renew()

    def renew(self) -> None:
        self._own = threading.local()  # the file system of each thread

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        session: Any = getattr(getattr(self._own, "system", None), "_session", None)
        if self._asynchronous and hasattr(session, "close"):
            await session.close()

    async def pages(self, prefix: str, after: str) -> AsyncIterator[list[Stored]]:
        def list_all(system: AbstractFileSystem) -> Any:
            system.invalidate_cache()
            self._own.listed = time.monotonic()
            common = AsyncFileSystem._find if self._asynchronous else AbstractFileSystem.find  # noqa: SLF001
            own = getattr(system, common.__name__)
            # Else a folder that cannot be listed would be left out.
            strict = {"on_error": "raise"} if own.__func__ is common else {}
            return own(f"{self._folder}/{prefix}".rstrip("/"), detail=True, **strict)

        found: Mapping[str, Any] = await self._call(list_all)
        below = f"{self._folder}/"
        files = [
            Stored(path.removeprefix(below), info["size"], version_of(info))
            for path, info in found.items()
            if info["type"] == "file"
        ]
        if later := [file for file in files if file.path > after]:
            yield later

    async def find(self, path: str) -> Stored:
        def ask(system: AbstractFileSystem) -> Any:
            return (system._info if self._asynchronous else system.info)(f"{self._folder}/{path}")  # noqa: SLF001  fsspec's protocol

        info = await self._call(ask)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return Stored(path, info["size"], version_of(info))

    async def get(self, file: Stored, start: int, stop: int) -> memoryview:
        def read(system: AbstractFileSystem) -> Any:
            path = f"{self._folder}/{file.path}"
            if self._asynchronous:
                return system._cat_file(path, start=start, end=stop)  # noqa: SLF001  fsspec's protocol
            with system.open(path, "rb", cache_type="none") as opened:  # not more than is asked for
                opened.seek(start)
                return opened.read(stop - start)

        await self._require_same(file)
        data = memoryview(await self._call(read))
        if len(data) != stop - start:
            raise CutShortError
        return data

    async def _require_same(self, file: Stored) -> None:
        now = time.monotonic()
        if now - self._checked.get(file.path, float("-inf")) < _TRUSTED:
            return
        found = await self.find(file.path)
        if found.size != file.size:
            msg = f"it has {found.size:,} bytes, and had {file.size:,}"
            raise ChangedError(msg)
        if found.version != file.version:
            msg = "it was written again"
            raise ChangedError(msg)
        self._checked[file.path] = now

    async def _call(self, work: Callable[[AbstractFileSystem], Any]) -> Any:
        """Call a function with a file system."""
        if self._asynchronous:
            return await work(self._system())
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._call_in_thread, work)

    def _call_in_thread(self, work: Callable[[AbstractFileSystem], T]) -> T:
        own = self._own
        try:
            return work(self._system())
        except FileNotFoundError:
            raise
        except BaseException:
            own.__dict__.clear()  # its connection may be broken
            raise

    def _system(self) -> AbstractFileSystem:
        """Return this thread's file system."""
        own = self._own
        if not hasattr(own, "system"):
            more = {"asynchronous": True} if self._asynchronous else {}
            try:
                own.system, _ = url_to_fs(
                    str(self._root), skip_instance_cache=True, **more, **self._given
                )
            except TypeError as error:
                words = first_line(str(error), self._options)
            else:
                own.listed = time.monotonic()
                return own.system
            # Outside the handler, so that the error of fsspec does not go along.
            msg = f"{self._root.scheme}:// does not take these storage_options: {words}."
            raise OptionError(msg)
        if time.monotonic() - own.listed > _TRUSTED:
            own.system.invalidate_cache()
            own.listed = time.monotonic()
        return own.system


def version_of(info: Mapping[str, Any]) -> str:
    """Return what tells that a file was written again.

    >>> version_of({"size": 5, "type": "file", "modify": "20260101120000"})
    '20260101120000'
    """
    lfs = info.get("lfs") or {}
    for name in _VERSIONS:
        if value := info.get(name) or lfs.get(name):
            return str(value)
    return ""
