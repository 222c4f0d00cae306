"""The origin of blocks, as a porter sees it, and how many bytes it brings from there at a time.

Blocks lie in files of this machine, or in a storage: see `storage.remote_file`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataporter.shards.index import Index
from dataporter.shards.places import entries_of
from dataporter.shards.schemas import require_unchanged
from dataporter.shards.shard_file import LocalFile, ShardFile
from dataporter.shards.storage.pacing import Patience


class Load:
    """A bound of bytes, which grows by all that was done, up to `most`.

    So the first bytes do not wait for many others. What is larger than the bound has it to itself.

    >>> load = Load(first=10, most=15)
    >>> with load.of(4), load.of(6):
    ...     load.bytes
    10
    >>> with load.of(15):
    ...     load.bytes
    15
    """

    def __init__(self, *, first: int, most: int) -> None:
        self._bound, self._most = first, most
        self.bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Wait until there is room for so many bytes, and hold them."""
        with self._changed:
            self._changed.wait_for(lambda: self.bytes + size <= self._bound or not self.bytes)
            self.bytes += size
        try:
            yield
        finally:
            with self._changed:
                self.bytes -= size
                self._bound = min(self._bound + size, self._most)
                self._changed.notify_all()


class Origin(ABC):
    """The place where the files of an index lie."""

    entries: int  # of the cache: blocks, and what else is kept there
    threads: int  # that bring blocks at a time
    tries: int = 1  # to decode a block, which may have been damaged on its way

    def patience(self) -> Patience:
        """Return the patience with all requests for one block. Local files need none."""
        return Patience(0.0)

    @abstractmethod
    @contextmanager
    def opened(self, block: int, patience: Patience) -> Iterator[ShardFile]:
        """Open the file of a block, which must be the one that was indexed."""

    def shared(self, block: int) -> list[int]:  # noqa: ARG002  local files are at hand
        """Return the entries of the cache that a block is decoded with."""
        return []

    def distances(self, of_blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the distance to the next use of each entry, from those of blocks."""
        return of_blocks

    def counters(self) -> dict[str, int]:
        """Return how much was asked of a storage so far."""
        return {}


class LocalOrigin(Origin):
    """Files of this machine."""

    def __init__(self, index: Index, cores: int) -> None:
        self._index = index
        self.entries = entries_of(index)
        self.threads = cores

    @contextmanager
    def opened(self, block: int, patience: Patience) -> Iterator[ShardFile]:  # noqa: ARG002  nobody is asked
        self._check(block)
        try:
            yield LocalFile(Path(str(self._index.path(block))))
        except OSError:
            self._check(block)
            raise
        self._check(block)

    def _check(self, block: int) -> None:
        try:
            status = Path(str(self._index.path(block))).stat()
        except FileNotFoundError:
            status = None
        require_unchanged(self._index, int(self._index.file[block]), status)
