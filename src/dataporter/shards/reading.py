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
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import (
    DataPorterError,
    ShardChangedError,
    ShardError,
    ShardFormatError,
)
from dataporter.shards.formats.format import Format, Rows, Sample
from dataporter.shards.index import Index
from dataporter.shards.places import name_of_contents
from dataporter.shards.schemas import require_unchanged
from dataporter.shards.storage.stored import Url
from dataporter.system.memory import map_file

# Open at a time. More than the tracks of most runs; each holds a map and a few small objects.
_MOST_BLOCKS = 4096
_MOST_FILES = 1024
_UNREAD = 8  # reads for each open block, after which one that had none of them is closed

Value = TypeVar("Value")


class Decodes(Protocol):
    """Brings blocks that cannot be read as they lie in their file."""

    def map(self, block: int) -> memoryview:
        """Map the file of a decoded block; wait until it is there."""
        ...

    readers: WeakSet[Any]  # told by `let_go` while a block is awaited, and by `announced`

    def evictions(self) -> int:
        """Count evictions: another number than before says that blocks may be gone."""
        ...

    def is_gone(self, block: int) -> bool:
        """Return True if a block that was mapped here has been evicted or replaced since."""
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
        self._blocks: dict[int, Rows] = {}  # those that were read lately
        self._older: dict[int, Rows] = {}  # the others that are open
        self._reads = 0  # since the older ones were closed
        self._is_idle = True  # nothing was read since the last announcement
        self._epoch = -1  # that was announced
        self._files: dict[int, memoryview] = {}
        self._renewed: set[int] = set()  # blocks that were decoded again, since they were damaged
        self._evictions = 0  # when they were last looked at
        if decoder is not None:
            decoder.readers.add(self)

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
        self.let_go()
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

        self.let_go()
        return self._read(block, read)

    def _read(self, block: int, read: Callable[[Rows], Value]) -> Value:
        """Read from the rows of a block."""
        try:
            rows = self._opened(block)
            data = self._data(block) if rows is None else memoryview(b"")
            try:
                return read(self._open(block, data) if rows is None else rows)
            except Exception as error:
                if not self._may_be_damaged_copy(block, error):
                    raise
            del rows, data  # a block that is mapped takes up the room of its successor
            return read(self._opened_again(block))
        except ShardError as error:
            _name_file(error, self._index.path(block))
            raise

    def _opened(self, block: int) -> Rows | None:
        """Return the rows of a block that is open, and close those that have not been read lately.

        What is mapped takes up the disk when it is evicted, for as long as this process is idle.
        """
        self._is_idle = False
        self._reads += 1
        if self._reads > _UNREAD * (len(self._blocks) + len(self._older)):
            self._reads, self._older, self._blocks = 0, self._blocks, {}
        rows = self._blocks.get(block)
        if rows is None and (rows := self._older.pop(block, None)) is not None:
            self._blocks[block] = rows
        return rows

    def _may_be_damaged_copy(self, block: int, error: Exception) -> bool:
        """Return True if an error may come from a decoded block, not from what it was made of."""
        is_damage = isinstance(error, ShardFormatError | ShardChangedError)
        if block in self._renewed or (isinstance(error, DataPorterError) and not is_damage):
            return False
        return not self._is_mapped(block)

    def _opened_again(self, block: int) -> Rows:
        """Open a block that is decoded again. Each is, once: its source may be what is damaged."""
        self._renewed.add(block)
        self._close(block)
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
        self.let_go()
        return self._decodes().map(number)

    def _decodes(self) -> Decodes:
        if self._decoder is None:
            msg = "a block has to be decoded, and nothing decodes it."
            raise RuntimeError(msg)
        return self._decoder

    def let_go(self) -> None:
        """Close blocks that were evicted: as long as they are mapped, they take up the disk."""
        decoder = self._decoder
        if decoder is None or (evictions := decoder.evictions()) == self._evictions:
            return
        self._evictions = evictions
        for number in (*self._blocks.copy(), *self._older.copy()):
            if decoder.is_gone(number):
                self._close(number)

    def announced(self, epoch: int) -> None:
        """Close all blocks when an epoch begins, and if workers read it instead of this process."""
        if self._is_idle or epoch != self._epoch:
            self._blocks, self._older = {}, {}
        self._is_idle, self._epoch = True, epoch

    def _close(self, block: int) -> None:
        self._blocks.pop(block, None)
        self._older.pop(block, None)

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
