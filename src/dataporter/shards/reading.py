"""Reading samples: the blocks that this process has open, and rows out of them.

Files are mapped, never copied, so all workers of a machine share their pages. A block that has to
be decoded is mapped as the porter has written it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ShardError
from dataporter.mapping import map_file
from dataporter.shards.changes import require_unchanged
from dataporter.shards.formats.format import Format, Rows, Sample
from dataporter.shards.index import Index
from dataporter.shards.storage.urls import Url

# Open at a time. More than the tracks of most runs; each holds a map and a few small objects.
_MOST_BLOCKS = 4096
_MOST_FILES = 1024
_LOOKED_AT = 16  # blocks, in turn, when another one is opened

Value = TypeVar("Value")


class Decodes(Protocol):
    """Brings blocks that cannot be read as they lie in their file."""

    def map(self, block: int) -> memoryview:
        """Map the file of a decoded block; wait until it is there."""
        ...

    def holds(self, block: int) -> bool:
        """Return True if the file of a decoded block is there."""
        ...


class Reader:
    """Reads samples of an index. Copies in other processes open blocks of their own."""

    def __init__(self, index: Index, format: Format, decoder: Decodes | None) -> None:  # noqa: A002  the word of this room
        self._index = index
        self._format = format
        self._decoder = decoder
        self._blocks: dict[int, Rows] = {}
        self._files: dict[int, memoryview] = {}

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
        samples: list[Any] = [None] * len(blocks)
        try:
            for block, wanted in places.items():
                read = self._blocks.get(block) or self._open(block)
                found = read([rows[place] for place in wanted])
                for place, sample in zip(wanted, found, strict=True):
                    samples[place] = sample
        except ShardError as error:
            _name_file(error, self._index.path(block))
            raise
        return samples

    def flat_lists(self, block: int, column: str) -> Any:
        """Return a column of lists of numbers in a block; None if its format has no such column."""
        rows = self._blocks.get(block) or self._open(block)
        flat_lists = getattr(rows, "flat_lists", None)
        return None if flat_lists is None else flat_lists(column)

    def _open(self, number: int) -> Rows:
        block, schema = self._index.block(number), self._index.schema(number)
        if self._index.is_local and self._format.is_mapped(schema):
            data = self._mapped(int(self._index.file[number]))
        else:
            data = self._decoded(number)
            block = block._replace(offset=0, size=len(data))
        return _keep(self._blocks, number, self._format.open(data, block, schema), _MOST_BLOCKS)

    def _decoded(self, number: int) -> memoryview:
        if self._decoder is None:
            msg = f"block {number} has to be decoded, and nothing decodes it."
            raise RuntimeError(msg)
        self._drop_evicted(self._decoder)
        return self._decoder.map(number)

    def _drop_evicted(self, decoder: Decodes) -> None:
        """Close blocks that were evicted: as long as they are mapped, they take up the disk."""
        for number in list(islice(self._blocks.copy(), _LOOKED_AT)):
            rows = self._blocks.pop(number, None)
            if rows is not None and decoder.holds(number):
                self._blocks[number] = rows  # it is looked at again after all others

    def _mapped(self, file: int) -> memoryview:
        if file in self._files:
            return self._files[file]
        path = Path(str(self._index.root / self._index.paths[file]))
        try:
            opened = path.open("rb")
        except FileNotFoundError:
            require_unchanged(self._index, file, None)
            raise
        with opened:
            require_unchanged(self._index, file, os.fstat(opened.fileno()))
            return _keep(self._files, file, map_file(opened.fileno()), _MOST_FILES)


def _keep(kept: dict[int, Value], number: int, value: Value, most: int) -> Value:
    """Keep a value; drop the first of those that are kept if there are too many.

    Blocks are done with in the order in which they were opened, so the first is the one to drop.
    """
    kept[number] = value
    if len(kept) > most:
        with suppress(KeyError, StopIteration, RuntimeError):  # another thread changes it
            del kept[next(iter(kept))]
    return value


def _name_file(error: ShardError, path: Path | Url) -> None:
    """Add the file to the message of a format, which sees only its contents."""
    message = str(error)
    if not isinstance(error, OSError) and str(path) not in message:  # an OSError names its own
        error.args = (f"{message} The file is {path}.",)
