"""Reading samples: the blocks that this process has open, and rows out of them.

Files are mapped, never copied, so all workers of a machine share their pages. A block that has to
be decoded is mapped as the porter has written it.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ShardError
from dataporter.shards.changes import require_unchanged
from dataporter.shards.formats.format import Format, Rows, Sample
from dataporter.shards.index import Index

# Open at a time. More than the tracks of most runs; each holds a map and a few small objects.
_MOST_BLOCKS = 4096
_MOST_FILES = 1024

Value = TypeVar("Value")


class Decodes(Protocol):
    """Brings blocks that cannot be read as they lie in their file."""

    def map(self, block: int) -> mmap.mmap:
        """Map the file of a decoded block; wait until it is there."""
        ...


class Reader:
    """Reads samples of an index. Copies in other processes open blocks of their own."""

    def __init__(self, index: Index, format: Format, decoder: Decodes | None) -> None:  # noqa: A002  the word of this room
        self._index = index
        self._format = format
        self._decoder = decoder
        self._blocks: _Recent[Rows] = _Recent(_MOST_BLOCKS)
        self._files: _Recent[memoryview] = _Recent(_MOST_FILES)

    def __reduce__(self) -> tuple[type[Reader], tuple[Any, ...]]:
        return Reader, (self._index, self._format, self._decoder)

    def sample(self, index: int) -> Sample:
        """Read one sample."""
        return self.samples(np.array([index], dtype=np.int64))[0]

    def samples(self, indices: NDArray[np.int64]) -> list[Sample]:
        """Read samples, those of one block together."""
        blocks, rows = (column.tolist() for column in self._index.locate(indices))
        places: dict[int, list[int]] = {}
        for place, block in enumerate(blocks):
            places.setdefault(block, []).append(place)
        if len(places) == len(blocks):
            return [self._read(block, (row,))[0] for block, row in zip(blocks, rows, strict=True)]
        samples: list[Any] = [None] * len(blocks)
        for block, wanted in places.items():
            read = self._read(block, [rows[place] for place in wanted])
            for place, sample in zip(wanted, read, strict=True):
                samples[place] = sample
        return samples

    def _read(self, block: int, rows: Sequence[int]) -> list[Sample]:
        try:
            return self._rows(block)(rows)
        except ShardError as error:
            _name_file(error, self._index.path(block))
            raise

    def _rows(self, number: int) -> Rows:
        rows = self._blocks.find(number)
        return rows if rows is not None else self._blocks.keep(number, self._open(number))

    def _open(self, number: int) -> Rows:
        block, schema = self._index.block(number), self._index.schema(number)
        if self._format.is_mapped(schema):
            return self._format.open(self._mapped(int(self._index.file[number])), block, schema)
        data = self._decoded(number)
        return self._format.open(data, block._replace(offset=0, size=len(data)), schema)

    def _decoded(self, number: int) -> memoryview:
        if self._decoder is None:
            msg = f"block {number} has to be decoded, and nothing decodes it."
            raise RuntimeError(msg)
        return memoryview(self._decoder.map(number))

    def _mapped(self, file: int) -> memoryview:
        if (data := self._files.find(file)) is not None:
            return data
        path = self._index.root / self._index.paths[file]
        try:
            opened = path.open("rb")
        except FileNotFoundError:
            require_unchanged(self._index, file, None)
            raise
        with opened:
            status = os.fstat(opened.fileno())
            require_unchanged(self._index, file, status)
            if status.st_size == 0:
                return memoryview(b"")
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return self._files.keep(file, memoryview(mapped))


class _Recent(Generic[Value]):
    """Values by number: at most so many, those that were found last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[int, Value] = OrderedDict()

    def find(self, number: int) -> Value | None:
        try:
            self._kept.move_to_end(number)
            return self._kept[number]
        except KeyError:  # or another thread has just dropped it
            return None

    def keep(self, number: int, value: Value) -> Value:
        self._kept[number] = value
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return value


def _name_file(error: ShardError, path: Path) -> None:
    """Add the file to the message of a format, which sees only its contents."""
    message = str(error)
    if not isinstance(error, OSError) and str(path) not in message:  # an OSError names its own
        error.args = (f"{message} The file is {path}.",)
