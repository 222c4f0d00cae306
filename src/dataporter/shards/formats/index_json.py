"""Folders whose files are listed in an `index.json`: what MDS and LitData have in common.

The index says which files there are, how many rows each has and how they are encoded. A file
that is listed and not there is an error. At its head a file has the offsets of its rows:

    rows: u32 | offset of each row, and of the end of the last: u32 each
"""

from __future__ import annotations

import functools
import json
import struct
import threading
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from dataporter.errors import ShardFormatError, ShardsNotFoundError
from dataporter.shards.shard_file import ShardFile

INDEX = "index.json"
_U32 = struct.Struct("<I")
_parsing = threading.Lock()  # many threads may need an index at a time: one fetches it


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder with an index, as it was at a time. It serves as the key of a cache."""

    index: str  # its name
    version: str
    size: int
    file: ShardFile = field(compare=False, repr=False)


class ListedShard(NamedTuple):
    """The folder whose index lists a shard, and the name that the shard has there."""

    folder: ListedFolder
    name: str


def folder_of(shard: ShardFile) -> ListedShard:
    """Find the folder whose index lists a shard: its own, or the one above.

    Where several processes have written a dataset, each may have a folder of its own.
    """
    parts = PurePath(shard.name).parts
    for path, depth in ((INDEX, 1), (f"../{INDEX}", 2)):
        index = shard.beside(path)
        if index is not None:
            folder = ListedFolder(index.name, index.version, index.size, index)
            return ListedShard(folder, "/".join(parts[-depth:]))
    msg = (
        f"{INDEX} is missing beside {shard.name}. It lists the shards of the folder: copy it from "
        f"where the data came from, or write the dataset again."
    )
    raise ShardsNotFoundError(msg)


def damaged_index(folder: ListedFolder, found: str, expected: str) -> ShardFormatError:
    """Make the error for an index that cannot be used."""
    return ShardFormatError(
        f"{folder.index} {found}; expected {expected}. Copy it again from where the data came "
        f"from, or write the dataset again."
    )


def not_listed(shard: ShardFile, folder: ListedFolder) -> ShardFormatError:
    """Make the error for a file that the index of its folder does not have."""
    return ShardFormatError(
        f"{shard.name} is not listed in {folder.index}. Leave the file out, or copy the index that "
        f"belongs to it."
    )


def require_size(shard: ShardFile, expected: int, folder: ListedFolder) -> None:
    """Raise if the index announces another size of a shard."""
    if shard.size != expected:
        word = "truncated" if shard.size < expected else "too long"
        msg = (
            f"{shard.name} is {word}: it has {shard.size:,} bytes, but {folder.index} announces "
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


def size_of_head(rows: int) -> int:
    """Return the bytes before anything but offsets.

    >>> size_of_head(3)
    20
    """
    return _U32.size * (rows + 2)


def row_offsets(data: memoryview, rows: int, *, end: int | None = None) -> list[int] | None:
    """Return the offsets of all rows and of the end, None if they cannot be right.

    The last row ends with `data`, unless `end` is given: then `data` may be the head alone.
    """
    head = size_of_head(rows)
    if len(data) < head or _U32.unpack_from(data)[0] != rows:
        return None
    offsets = np.frombuffer(bytes(data[_U32.size : head]), "<u4").astype(np.int64)
    if offsets[-1] != (len(data) if end is None else end):
        return None
    if offsets[0] < head or (np.diff(offsets) < 0).any():
        return None
    numbers: list[int] = offsets.tolist()
    return numbers


def head_of(sizes: list[int]) -> bytes:
    """Return the head of a file whose rows have these sizes and follow at once.

    >>> row_offsets(memoryview(head_of([1, 2]) + b"abc"), 2)
    [16, 17, 19]
    """
    first = size_of_head(len(sizes))
    offsets = np.cumsum([first, *sizes]).astype("<u4")
    return _U32.pack(len(sizes)) + offsets.tobytes()
