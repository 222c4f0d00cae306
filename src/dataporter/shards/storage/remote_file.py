"""A file in a storage as formats read it, and a storage as the origin of blocks."""

from __future__ import annotations

import io
import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dataporter.shards.cache import NEVER
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index
from dataporter.shards.origin import Origin
from dataporter.shards.places import entries_of
from dataporter.shards.shard_file import ShardFile
from dataporter.shards.storage.pacing import Patience
from dataporter.shards.storage.storage import PART, TRIES, Storage, merged
from dataporter.shards.storage.stored import StorageOptions, Stored


class Siblings(Protocol):
    """Files of a storage by path."""

    def get(self, path: str, /) -> Stored | None:
        """Return what is known of a file; None if there is none."""


class FoundOnce:
    """Files that are looked for when they are first needed, each once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._found: dict[str, Stored | None] = {}
        self._lock = threading.Lock()

    def within(self, patience: Patience) -> Siblings:
        """Return the files as they are looked for with some patience."""
        return _Within(self, patience)

    def find(self, path: str, patience: Patience) -> Stored | None:
        """Find a file, after waiting for others who do."""
        if path not in self._found:
            begun = time.monotonic()
            with self._lock:
                if path not in self._found:
                    patience.spend(begun)
                    self._found[path] = self._storage.find(path, patience)
        return self._found[path]


class _Within(NamedTuple):
    """Files that are looked for with some patience."""

    files: FoundOnce
    patience: Patience

    def get(self, path: str, /) -> Stored | None:
        return self.files.find(path, self.patience)


class RemoteFile(ShardFile):
    """A file in a storage. Ranges that are expected are fetched at once, and held until read.

    All requests share one patience, except those of a file that is read from beginning to end.
    """

    def __init__(
        self,
        storage: Storage,
        stored: Stored,
        siblings: Siblings,
        patience: Patience | None = None,
    ) -> None:
        self.name = str(storage.root / stored.path)
        self.size = stored.size
        self.version = stored.version
        self._storage = storage
        self._stored = stored
        self._siblings = siblings
        self._patience = patience or storage.patience()
        self._held: list[_Held] = []
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> memoryview:
        start, stop = offset, min(offset + size, self.size)
        if start >= stop:
            return memoryview(b"")
        if (held := self._take(start, stop)) is not None:
            return held
        return self._storage.read(self._stored, [(start, stop)], self._patience)[0]

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        inside = [(start, min(stop, self.size)) for start, stop in ranges]
        for start, stop in merged(inside):
            data = self._storage.begin(self._stored, [(start, stop)], self._patience)
            with self._lock:
                self._held.append(_Held(start, stop, data))

    def hold(self, offset: int, data: memoryview) -> None:
        """Take bytes of the file that need not be fetched."""
        known: Future[list[memoryview]] = Future()
        known.set_result([data])
        with self._lock:
            self._held.append(_Held(offset, offset + len(data), known))

    def beside(self, name: str) -> ShardFile | None:
        folder = posixpath.dirname(self._stored.path)
        path = posixpath.normpath(posixpath.join(folder, name))
        found = self._siblings.get(path)
        if found is None:
            return None
        return RemoteFile(self._storage, found, self._siblings, self._patience)

    def open(self) -> BinaryIO:
        return io.BufferedReader(_Windows(self._storage, self._stored))

    def copy(self, offset: int, size: int, to: Path) -> None:
        start, stop = offset, min(offset + size, self.size)
        if (held := self._take(start, stop)) is not None:
            to.write_bytes(held)
            return
        with to.open("wb") as file:
            self._storage.copy(self._stored, start, stop, file.fileno(), self._patience)

    def _take(self, start: int, stop: int) -> memoryview | None:
        """Return a range that is held, and let go of what has been read as a whole."""
        with self._lock:
            for held in self._held:
                if held.start <= start and stop <= held.stop:
                    break
            else:
                return None
            held.unread -= stop - start
            if held.unread <= 0:
                self._held.remove(held)
        return held.data.result()[0][start - held.start : stop - held.start]


class _Held:
    """A range that is held, or on its way."""

    def __init__(self, start: int, stop: int, data: Future[list[memoryview]]) -> None:
        self.start = start
        self.stop = stop
        self.unread = stop - start  # bytes
        self.data = data


class _Windows(io.RawIOBase):
    """A file that is read in windows. The next one is fetched while this one is read."""

    def __init__(self, storage: Storage, stored: Stored) -> None:
        self._storage = storage
        self._stored = stored
        self._position = 0
        self._begun: dict[int, Future[list[memoryview]]] = {}  # windows by their number

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._stored.size}
        self._position = max(0, base[whence] + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]  # typeshed's Buffer
        if self._position >= self._stored.size:
            return 0
        number, skipped = divmod(self._position, PART)
        numbers = (number, number + 1)
        self._begun = {at: self._begun.get(at) or self._begin(at) for at in numbers}
        part = self._begun[number].result()[0][skipped : skipped + len(into)]
        into[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _begin(self, number: int) -> Future[list[memoryview]]:
        start = number * PART
        stop = min(start + PART, self._stored.size)
        return self._storage.begin(self._stored, [(start, max(start, stop))])


# An entry of the cache, its size, a function that writes it, and the patience with that.
Keep = Callable[[int, int, Callable[[Path], None], Patience], memoryview | None]

_COUNTERS = ("requests", "retries", "hedges", "throttled", "failed")


class StoredOrigin(Origin):
    """Files in a storage.

    A part that all blocks of a file need, such as the footer of Parquet, is kept in the cache. The
    entry of file f there comes f after those of the blocks. `keep` returns an entry, and makes it
    by a function if it is not there; or None if there is no room. The storage has answered the
    process that made the index.
    """

    tries = TRIES

    def __init__(
        self, index: Index, format_: Format, options: StorageOptions, cores: int, keep: Keep
    ) -> None:
        if isinstance(index.root, Path):
            msg = f"{index.root} is no storage."
            raise TypeError(msg)
        self._index, self._format, self._keep = index, format_, keep
        self._storage = Storage(index.root, options, is_known=True)
        self._siblings = FoundOnce(self._storage)
        self.entries = entries_of(index)
        self.threads = max(cores, options.max_requests)
        # The blocks of file f are those from _borders[f] to _borders[f + 1].
        self._borders = np.searchsorted(index.file, np.arange(len(index.paths) + 1))

    def patience(self) -> Patience:
        return self._storage.patience()

    @contextmanager
    def opened(self, block: int, patience: Patience) -> Iterator[ShardFile]:
        number = int(self._index.file[block])
        file = self._file(number, patience)
        if part := self._shared_part(number):
            start, stop = part
            data = self._keep(
                len(self._index.rows) + number,
                stop - start,
                lambda to: file.copy(start, stop - start, to),
                patience,
            )
            if data is not None:
                file.hold(start, data)
        yield file

    def shared(self, block: int) -> list[int]:
        return [len(self._index.rows) + int(self._index.file[block])]

    def distances(self, of_blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        padded = np.append(of_blocks, NEVER)  # a border may be the end
        # Never 0, which is for what is in use: a part can be fetched again, so blocks come first.
        of_parts = np.maximum(np.minimum.reduceat(padded, self._borders)[:-1], 1)
        return np.append(of_blocks, of_parts)

    def counters(self) -> dict[str, int]:
        counted = self._storage.counters()
        fetched = {"fetched": counted.get("bytes", 0)}  # `bytes` are those of the cache
        return fetched | {name: counted.get(name, 0) for name in _COUNTERS}

    def _file(self, number: int, patience: Patience) -> RemoteFile:
        index = self._index
        stored = Stored(index.paths[number], int(index.sizes[number]), index.versions[number])
        siblings = self._siblings.within(patience)
        return RemoteFile(self._storage, stored, siblings, patience)

    def _shared_part(self, number: int) -> tuple[int, int] | None:
        index = self._index
        blocks = slice(self._borders[number], self._borders[number + 1])
        begin = int(index.offset[blocks].min())
        end = int((index.offset[blocks] + index.size[blocks]).max())
        return self._format.shared_part(begin, end, int(index.sizes[number]))
