"""Folders of MDS and LitData: an `index.json` lists files, and these have one structure.

The index says which files there are, how many rows each has and how they are encoded. A file
that is listed and not there is an error. A file is

    rows: u32 | offset of each row, and of the end of the last: u32 each | rows

and a row is the sizes of its values that vary in size, u32 each, then the values.
"""

from __future__ import annotations

import functools
import json
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dataporter.errors import ShardChangedError, ShardFormatError, ShardsNotFoundError
from dataporter.shards.formats.evidence import PROBE, ends, read_ends
from dataporter.shards.formats.format import Sample
from dataporter.shards.shard_file import ShardFile

INDEX = "index.json"
_U32 = struct.Struct("<I")
_parsing = threading.Lock()  # many threads may need an index at a time: one fetches it

Decode: TypeAlias = Callable[[memoryview], Any]  # a value as it is stored to what it stands for


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder with an index, as it was at a time. It serves as the key of a cache."""

    index: str  # its name
    version: str
    size: int
    file: ShardFile = field(compare=False, repr=False)


def folder_of(file: ShardFile) -> tuple[ListedFolder, str]:
    """Return the folder whose index lists a file, its own or the one above, and its name there.

    Where several processes have written a dataset, each may have a folder of its own.
    """
    parts = PurePath(file.name).parts
    for path, depth in ((INDEX, 1), (f"../{INDEX}", 2)):
        index = file.beside(path)
        if index is not None:
            folder = ListedFolder(index.name, index.version, index.size, index)
            return folder, "/".join(parts[-depth:])
    msg = (
        f"{INDEX} is missing beside {file.name}. It lists the shards of the folder: copy it from "
        f"where the data came from, or write the dataset again."
    )
    raise ShardsNotFoundError(msg)


def damaged_index(folder: ListedFolder, found: str, expected: str) -> ShardFormatError:
    """Return the error of an index that cannot be used."""
    return ShardFormatError(
        f"{folder.index} {found}; expected {expected}. Copy it again from where the data came "
        f"from, or write the dataset again."
    )


def not_listed(file: ShardFile, folder: ListedFolder) -> ShardFormatError:
    """Return the error of a file that the index of its folder does not have."""
    return ShardFormatError(
        f"{file.name} is not listed in {folder.index}. Leave the file out, or copy the index that "
        f"belongs to it."
    )


def require_size(file: ShardFile, expected: int, folder: ListedFolder) -> None:
    """Raise if the index announces another size of a file."""
    if file.size != expected:
        word = "truncated" if file.size < expected else "too long"
        msg = (
            f"{file.name} is {word}: it has {file.size:,} bytes, but {folder.index} announces "
            f"{expected:,}. Copy the file again."
        )
        raise ShardFormatError(msg)


def parse_index(folder: ListedFolder) -> dict[str, Any]:
    """Parse an index. It is parsed again only after it has changed."""
    with _parsing:
        return _parsed(folder)


@functools.lru_cache(maxsize=16)
def _parsed(folder: ListedFolder) -> dict[str, Any]:
    raw = bytes(folder.file.read(0, folder.size))
    try:
        parsed = json.loads(raw)
    except ValueError as error:
        raise damaged_index(folder, f"is damaged ({error})", "JSON") from error
    if not isinstance(parsed, dict):
        raise damaged_index(folder, f"has a {type(parsed).__name__}", "an object")
    return parsed


def size_of_offsets(rows: int) -> int:
    """Return the bytes before the first row.

    >>> size_of_offsets(3)
    20
    """
    return _U32.size * (rows + 2)


def read_head_and_tail(file: ShardFile, head: int) -> tuple[memoryview, memoryview]:
    """Read at least the `head` bytes that a file begins with, and its end, at once."""
    longest = max(head, PROBE)
    file.expect(ends(0, file.size, longest))
    return read_ends(file, 0, file.size, longest)


def row_offsets(head: memoryview, rows: int, end: int) -> list[int] | None:
    """Return the offsets of all rows and of the end, None if they cannot be right.

    `head` begins with them, and `end` is that of the last row.
    """
    size = size_of_offsets(rows)
    if len(head) < size or _U32.unpack_from(head)[0] != rows:
        return None
    offsets = np.frombuffer(bytes(head[_U32.size : size]), "<u4").astype(np.int64)
    if offsets[0] < size or offsets[-1] != end or (np.diff(offsets) < 0).any():
        return None
    numbers: list[int] = offsets.tolist()
    return numbers


def require_offsets(head: memoryview, rows: int, end: int, file: ShardFile) -> None:
    """Raise unless a file, which begins with `head`, has the offsets of so many rows."""
    if row_offsets(head, rows, end) is None:
        msg = (
            f"{file.name} does not begin with the offsets of {rows:,} rows, which its index "
            f"announces. It is damaged, or of another format. Copy the file again."
        )
        raise ShardFormatError(msg)


def indexed_offsets(data: memoryview, rows: int, end: int) -> list[int]:
    """Return the offsets of a block's rows. Raise if the block has changed."""
    offsets = row_offsets(data, rows, end)
    if offsets is None:
        msg = (
            f"The block is not the one that was indexed, which had {rows:,} rows. Build the index "
            f"again."
        )
        raise ShardChangedError(msg)
    return offsets


def head_of(sizes: list[int]) -> bytes:
    """Return the head of a file whose rows have these sizes.

    >>> row_offsets(memoryview(head_of([1, 2])), 2, end=19)
    [16, 17, 19]
    """
    offsets = np.cumsum([size_of_offsets(len(sizes)), *sizes]).astype("<u4")
    return _U32.pack(len(sizes)) + offsets.tobytes()


class StoredColumn(NamedTuple):
    """A column of stored rows: one value or more of each row."""

    name: str
    place: int  # of its first value
    decoders: Sequence[Decode]  # of its values
    join: Callable[[Iterator[Any]], Any] | None = None  # makes one of several values


class StoredRows:
    """The rows of a block as samples, restricted to some columns."""

    def __init__(
        self,
        data: memoryview,
        offsets: Sequence[int],
        sizes: Sequence[int | None],  # of all values, None where the row has them
        columns: Sequence[StoredColumn],
    ) -> None:
        self._data = data
        self._offsets = offsets
        self._sizes = sizes
        self._columns = columns
        self._varying = struct.Struct(f"<{sum(not size for size in sizes)}I")

    def __call__(self, numbers: Sequence[int]) -> list[Sample]:
        return [self._read(number) for number in numbers]

    def _read(self, number: int) -> Sample:
        data, bounds = self._data, self._bounds(number)
        sample: Sample = {}
        for name, place, decoders, join in self._columns:
            try:
                if join is None:
                    sample[name] = decoders[0](data[bounds[place] : bounds[place + 1]])
                    continue
                sample[name] = join(
                    decode(data[bounds[at] : bounds[at + 1]])
                    for at, decode in enumerate(decoders, place)
                )
            except Exception as error:
                found = f"has a damaged value {name!r} ({type(error).__name__}: {error})"
                raise _damaged(number, found) from error
        return sample

    def _bounds(self, number: int) -> list[int]:
        """Return the first byte of each value of a row, and the end of the last one."""
        begin, end = self._offsets[number], self._offsets[number + 1]
        at = begin + self._varying.size
        if at > end:
            raise _damaged(number, "is too short for the sizes of its values")
        varying = iter(self._varying.unpack_from(self._data, begin))
        bounds = [at]
        for size in self._sizes:
            at += size or next(varying)
            bounds.append(at)
        if at != end:
            raise _damaged(number, f"has {end - begin:,} bytes, but its values have {at - begin:,}")
        return bounds


def _damaged(row: int, found: str) -> ShardFormatError:
    return ShardFormatError(f"Row {row:,} of the block {found}. Copy the file again.")
