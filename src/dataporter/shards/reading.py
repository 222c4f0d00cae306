"""Reading samples: the blocks that this process has open, and rows out of them.

Files are mapped, never copied, so all workers of a machine share their pages. A block that has to
be decoded is mapped as the porter has written it. If its rows cannot be read, the copy may be
damaged: it is decoded again, once. What is then wrong is in the source.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import (
    DataPorterError,
    ShardChangedError,
    ShardError,
    ShardFormatError,
)
from dataporter.shards.cache_folder import name_of_contents
from dataporter.shards.changes import require_unchanged
from dataporter.shards.formats.format import Format, Rows, Sample
from dataporter.shards.index import Index
from dataporter.shards.storage.urls import Url
from dataporter.system.memory import map_file

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

    def renew(self, block: int) -> None:
        """Decode a block again, whose file is damaged; wait until it is there."""
        ...


class Reader:
    """Reads samples of an index. Copies in other processes open blocks of their own."""

    def __init__(self, index: Index, format: Format, decoder: Decodes | None) -> None:  # noqa: A002  the word of this room
        self._index = index
        self._format = format
        self._decoder = decoder
        self._blocks: dict[int, Rows] = {}
        self._files: dict[int, memoryview] = {}
        self._renewed: set[int] = set()  # blocks that were decoded again, since they were damaged

    def __reduce__(self) -> tuple[type[Reader], tuple[Any, ...]]:
        return Reader, (self._index, self._format, self._decoder)

    def name_of_contents(self) -> str:
        """Name the samples: the same name, the same samples."""
        return name_of_contents(self._index, self._format)

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
        for block, wanted in places.items():
            numbers = [rows[place] for place in wanted]
            found = self._read(block, partial(_read_rows, numbers))
            for place, sample in zip(wanted, found, strict=True):
                samples[place] = sample
        return samples

    def flat_lists(self, block: int, column: str) -> Any:
        """Return a column of lists of numbers in a block; None if its format has no such column."""

        def read(rows: Rows) -> Any:
            flat_lists = getattr(rows, "flat_lists", None)
            return None if flat_lists is None else flat_lists(column)

        return self._read(block, read)

    def _read(self, block: int, read: Callable[[Rows], Value]) -> Value:
        """Read from the rows of a block."""
        try:
            rows = self._blocks.get(block)
            data = self._data(block) if rows is None else memoryview(b"")
            try:
                return read(self._open(block, data) if rows is None else rows)
            except Exception as error:
                if not self._may_be_damaged_copy(block, error):
                    raise
            return read(self._opened_again(block))
        except ShardError as error:
            _name_file(error, self._index.path(block))
            raise

    def _may_be_damaged_copy(self, block: int, error: Exception) -> bool:
        """Return True if an error may come from a decoded block, not from what it was made of."""
        is_damage = isinstance(error, ShardFormatError | ShardChangedError)
        if block in self._renewed or (isinstance(error, DataPorterError) and not is_damage):
            return False
        return not self._is_mapped(block)

    def _opened_again(self, block: int) -> Rows:
        """Open a block that is decoded again. Each is, once: its source may be what is damaged."""
        self._renewed.add(block)
        self._blocks.pop(block, None)
        self._decodes().renew(block)
        return self._open(block, self._data(block))

    def _is_mapped(self, block: int) -> bool:
        return self._index.is_local and self._format.is_mapped(self._index.schema(block))

    def _data(self, block: int) -> memoryview:
        """Map the file that holds a block, or the decoded block."""
        if self._is_mapped(block):
            return self._mapped(int(self._index.file[block]))
        return self._decoded(block)

    def _open(self, number: int, data: memoryview) -> Rows:
        block, schema = self._index.block(number), self._index.schema(number)
        if not self._is_mapped(number):
            block = block._replace(offset=0, size=len(data))
        return _keep(self._blocks, number, self._format.open(data, block, schema), _MOST_BLOCKS)

    def _decoded(self, number: int) -> memoryview:
        decoder = self._decodes()
        self._drop_evicted(decoder)
        return decoder.map(number)

    def _decodes(self) -> Decodes:
        if self._decoder is None:
            msg = "a block has to be decoded, and nothing decodes it."
            raise RuntimeError(msg)
        return self._decoder

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


def _read_rows(numbers: list[int], rows: Rows) -> list[Sample]:
    return rows(numbers)


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
