"""A storage as the origin of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataporter.shards.cache import NEVER
from dataporter.shards.cache_folder import entries_of
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index
from dataporter.shards.origin import Origin
from dataporter.shards.shard_file import ShardFile
from dataporter.shards.storage.options import StorageOptions
from dataporter.shards.storage.patience import Patience
from dataporter.shards.storage.remote_file import FoundOnce, RemoteFile
from dataporter.shards.storage.storage import TRIES, Storage
from dataporter.shards.storage.stored import Stored

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
