"""A storage as its callers see it: files are listed, found, read and copied, and a call waits.

Ranges that are asked for at once are merged and split into requests. These run in an event loop,
which has a thread of its own. Any thread may call. A process that has made a `Storage` must not
fork: neither the thread nor the connections survive that.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import threading
from bisect import bisect_right
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from dataporter.errors import ShardsNotFoundError
from dataporter.shards import storage_extra
from dataporter.shards.storage.pacing import Patience
from dataporter.shards.storage.requests import Requests
from dataporter.shards.storage.stored import Client, StorageOptions, Stored, Url

GAP = 64 << 10  # bytes between two ranges that are read rather than asked for apart
EXCESS = 0.05  # bytes read beyond those wanted, as a share of these
PART = 8 << 20  # bytes of one request at most

Range = tuple[int, int]


def merged(ranges: Sequence[Range]) -> list[Range]:
    """Join neighbours whose gap is small, as long as few bytes are read in vain.

    >>> merged([(0, 2_000_000), (2_000_100, 3_000_000), (9_000_000, 9_000_001)])
    [(0, 3000000), (9000000, 9000001)]
    """
    runs: list[Range] = []
    wanted = 0  # bytes of the last run that were asked for
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if runs:
            first, end = runs[-1]
            more = max(0, stop - max(start, end))
            read = max(stop, end) - first
            if start <= end or (start - end <= GAP and read <= (1 + EXCESS) * (wanted + more)):
                runs[-1] = (first, max(stop, end))
                wanted += more
                continue
        runs.append((start, stop))
        wanted = stop - start
    return runs


def split(run: Range) -> list[Range]:
    """Cut a range into equal parts of at most `PART` bytes.

    >>> split((0, 20 << 20)) == [(0, 6990507), (6990507, 13981014), (13981014, 20 << 20)]
    True
    """
    start, stop = run
    count = max(1, -(-(stop - start) // PART))
    size = -(-(stop - start) // count)
    return [(at, min(at + size, stop)) for at in range(start, stop, max(1, size))]


T = TypeVar("T")

Parts = list[memoryview]

_AGAIN = 0.1  # seconds until requests that still run are cancelled once more
TRIES = 3  # to read what turns out to be damaged: wrong bytes may have arrived

# The schemes of obstore. fsspec has the others.
OBJECT_STORES = frozenset({
    "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https",
})  # fmt: skip


class Storage:
    """The files below a URL. Requests for one thing may share their patience.

    One that is known has answered before, to another process.
    """

    def __init__(
        self, root: Url, options: StorageOptions | None = None, *, is_known: bool = False
    ) -> None:
        options = options or StorageOptions()
        self.root = root
        self._options = options
        self._client = _client(root, options)
        self._requests = Requests(self._client, root, options, is_known=is_known)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="dataporter storage", daemon=True
        )
        self._thread.start()

    def list(self, prefix: str = "") -> list[Stored]:
        """Return every file below a prefix, sorted by path."""
        return _without_folders(sorted(self._wait(self._requests.list(prefix))), prefix)

    def find(self, path: str, patience: Patience | None = None) -> Stored | None:
        """Return what is known of one file; None if there is none."""
        return self._wait(self._find(path, patience))

    def find_all(self, paths: Sequence[str]) -> dict[str, Stored]:
        """Return what is known of several files, without those that are not there."""
        found = self._wait(self._find_all(paths))
        return {file.path: file for file in found if file is not None}

    def read(
        self, file: Stored, ranges: Sequence[Range], patience: Patience | None = None
    ) -> Parts:
        """Return ranges of a file, in the order they are asked for."""
        return self._finish(self.begin(file, ranges, patience))

    def begin(
        self, file: Stored, ranges: Sequence[Range], patience: Patience | None = None
    ) -> Future[Parts]:
        """Begin to read ranges of a file, each its first byte and its end.

        Neighbours are read as one, and a large range by several requests at a time.
        """
        return self._begin(self._read(file, tuple(ranges), patience or self.patience()))

    def copy(
        self,
        file: Stored,
        start: int,
        stop: int,
        descriptor: int,
        patience: Patience | None = None,
    ) -> None:
        """Write a range of a file to another file, at its beginning, as the parts come."""
        patience = patience or self.patience()
        self._wait(self._copy(file, start, stop, descriptor, patience))

    def patience(self) -> Patience:
        """Return a patience that has not begun."""
        return Patience(self._options.patience)

    def counters(self) -> dict[str, int]:
        """Return how much was asked for so far."""
        return dict(self._requests.counters)

    def close(self) -> None:
        """Cancel all requests, and release connections."""
        if self._loop.is_closed():
            return
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _find(self, path: str, patience: Patience | None = None) -> Stored | None:
        try:
            return await self._requests.find(path, patience)
        except ShardsNotFoundError:
            return None

    async def _find_all(self, paths: Sequence[str]) -> Sequence[Stored | None]:
        return await _together(self._find(path) for path in paths)

    async def _read(self, file: Stored, ranges: Sequence[Range], patience: Patience) -> Parts:
        parts = [part for run in merged(ranges) for part in split(run)]
        found = await _together(self._requests.get(file, *part, patience) for part in parts)
        starts = [start for start, _ in parts]
        return [_cut(starts, found, *wanted) for wanted in ranges]

    async def _copy(
        self, file: Stored, start: int, stop: int, descriptor: int, patience: Patience
    ) -> None:
        async def copy_part(first: int, end: int) -> None:
            data = await self._requests.get(file, first, end, patience)
            await asyncio.to_thread(_write, descriptor, data, first - start)

        await _together(copy_part(*part) for part in split((start, stop)))

    async def _end(self) -> None:
        # Again and again: before Python 3.12 `wait_for` may miss one, and then a request goes on.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=_AGAIN)
        await self._client.close()
        await self._loop.shutdown_default_executor()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._finish(self._begin(work))

    def _finish(self, future: Future[T]) -> T:
        try:
            return future.result()
        except BaseException:
            future.cancel()  # as Ctrl-C ends the wait
            raise


def _client(root: Url, options: StorageOptions) -> Client:
    with storage_extra():  # each library is imported only where it is needed
        if root.scheme in OBJECT_STORES:
            from dataporter.shards.storage.object_store import ObjectStore  # noqa: PLC0415

            return ObjectStore(root, options)
        from dataporter.shards.storage.file_system import FileSystem  # noqa: PLC0415

        return FileSystem(root, options)


def _without_folders(files: Sequence[Stored], prefix: str) -> list[Stored]:
    """Leave out empty objects that stand for folders, as consoles and Spark make them.

    Their keys end with "/", which libraries do not show.

    >>> names = ["a.parquet", "a.parquet/b/1.parquet", "empty"]
    >>> files = [Stored(name, 5 * name.endswith("1.parquet"), "") for name in names]
    >>> [file.path for file in _without_folders(files, "")]
    ['a.parquet/b/1.parquet', 'empty']
    """
    folders = {"", prefix}
    for file in files:
        folder = posixpath.dirname(file.path)
        while folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    return [file for file in files if file.size or file.path not in folders]


async def _together(works: Any) -> list[Any]:
    """Wait for several works. If one fails, cancel the others first, and raise its error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _cut(starts: list[int], parts: list[memoryview], start: int, stop: int) -> memoryview:
    """Return a range out of parts that lie one after the other: a view if one part holds it."""
    if start >= stop:
        return memoryview(b"")
    at = bisect_right(starts, start) - 1
    view = parts[at][start - starts[at] : stop - starts[at]]
    if len(view) == stop - start:
        return view
    joined = np.empty(stop - start, np.uint8).data
    while True:
        joined[starts[at] - start if starts[at] > start else 0 :][: len(view)] = view
        at += 1
        if at == len(parts) or starts[at] >= stop:
            return joined
        view = parts[at][: stop - starts[at]]


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
