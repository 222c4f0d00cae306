"""Folders whose files are listed in an `index.json`: MDS and LitData.

The index says which files there are, how many rows each has and how they are encoded. A file
that is listed and not there is an error.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataporter.errors import ShardFormatError, ShardsNotFoundError

INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder with an index, as it was at a time. It serves as the key of a cache."""

    path: Path
    modified: int  # of the index, nanoseconds
    size: int

    @property
    def index(self) -> Path:
        return self.path / INDEX


def listed_folder(path: Path) -> ListedFolder:
    """Find the index of a folder."""
    try:
        facts = (path / INDEX).stat()
    except (FileNotFoundError, NotADirectoryError):
        msg = (
            f"{path / INDEX} is missing. It lists the shards of the folder: copy it from where "
            f"the data came from, or write the dataset again."
        )
        raise ShardsNotFoundError(msg) from None
    return ListedFolder(path, facts.st_mtime_ns, facts.st_size)


def folder_of(shard: Path) -> ListedFolder:
    """Find the folder whose index lists a shard: its own, or the one above.

    Where several processes have written a dataset, each may have a folder of its own.
    """
    above = shard.parent.parent
    if not (shard.parent / INDEX).exists() and (above / INDEX).exists():
        return listed_folder(above)
    return listed_folder(shard.parent)


def damaged_index(folder: ListedFolder, found: str, expected: str) -> ShardFormatError:
    """Make the error for an index that cannot be used."""
    return ShardFormatError(
        f"{folder.index} {found}; expected {expected}. Copy it again from where the data came "
        f"from, or write the dataset again."
    )


def not_listed(shard: Path, folder: ListedFolder) -> ShardFormatError:
    """Make the error for a file that the index of its folder does not have."""
    return ShardFormatError(
        f"{shard} is not listed in {folder.index}. Leave the file out, or copy the index that "
        f"belongs to it."
    )


def not_there(shard: Path, folder: ListedFolder) -> ShardsNotFoundError:
    """Make the error for a file that the index has and the folder has not."""
    return ShardsNotFoundError(
        f"{shard} is missing, although {folder.index} lists it. Copy it from where the data came "
        f"from."
    )


def size_as_listed(shard: Path, expected: int, folder: ListedFolder) -> int:
    """Return the size of a shard, or raise if its index announces another."""
    try:
        size = shard.stat().st_size
    except FileNotFoundError:
        raise not_there(shard, folder) from None
    if size != expected:
        word = "truncated" if size < expected else "too long"
        msg = (
            f"{shard} is {word}: it has {size:,} bytes, but {folder.index} announces "
            f"{expected:,}. Copy the file again."
        )
        raise ShardFormatError(msg)
    return size


@functools.lru_cache(maxsize=16)
def parse_index(folder: ListedFolder) -> dict[str, Any]:
    """Parse an index. It is parsed again only after it has changed."""
    try:
        parsed = json.loads(folder.index.read_bytes())
    except ValueError as error:
        raise damaged_index(folder, f"is damaged ({error})", "JSON") from error
    if not isinstance(parsed, dict):
        raise damaged_index(folder, f"has a {type(parsed).__name__}", "an object")
    return parsed
