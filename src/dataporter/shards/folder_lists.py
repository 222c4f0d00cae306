"""Lists of files that the writer of a dataset leaves in its folder.

| file | writer | lists |
| --- | --- | --- |
| index.json | MDS, LitData | the files of its folder, and how they are encoded |
| state.json | Hugging Face's `save_to_disk` | the files of its folder: others there are caches |
| dataset_dict.json | Hugging Face's `DatasetDict` | splits, each a folder |
"""

from __future__ import annotations

import json
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

from dataporter.errors import OptionError, ShardFormatError

# Files about the data, never a part of it.
BOOKKEEPING = {"index.json", "state.json", "dataset_dict.json", "dataset_info.json"}


class Folder(ABC):
    """A folder, on this machine or in a storage."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the contents of a file; None if there is none of that name."""

    @abstractmethod
    def holds(self, name: str) -> bool:
        """Return True if there is a file at a path relative to the folder."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names of the files in the folder."""


class FolderList(NamedTuple):
    """The files that a folder lists."""

    format: str
    names: list[str]  # paths relative to the folder


def read_folder_list(folder: Folder) -> FolderList | None:
    """Return the files that a folder lists, or None if it lists none."""
    return _index_json(folder) or _state_json(folder)


def refuse_splits(folder: Folder) -> None:
    """Raise if a folder holds the splits of a `DatasetDict`: train and test are no one dataset."""
    try:
        splits = [str(name) for name in _read(folder, "dataset_dict.json")["splits"]]
    except (OSError, LookupError, TypeError, ValueError):
        return  # absent, or somebody else's
    if splits:
        msg = (
            f"{folder.path} holds several splits: {', '.join(splits)}. Name the folder of one, "
            f"such as {posixpath.join(folder.path, splits[0])}."
        )
        raise OptionError(msg)


def _index_json(folder: Folder) -> FolderList | None:
    path = posixpath.join(folder.path, "index.json")
    try:
        contents = _read(folder, "index.json")
    except (OSError, ValueError) as error:
        if not any(_is_named_by_index(name) for name in folder.names()):
            return None  # somebody else's
        msg = (
            f"{path} cannot be read: {error}. It should name the files of its folder. Copy it "
            "again, or write the dataset again."
        )
        raise ShardFormatError(msg) from error
    try:
        if isinstance(contents, dict) and isinstance(contents.get("shards"), list):
            return FolderList("mds", [_mds_file(folder, shard) for shard in contents["shards"]])
        if isinstance(contents, dict) and isinstance(contents.get("chunks"), list):
            names = [chunk["filename"] for chunk in contents["chunks"]]
            return FolderList("litdata", [_inside(name) for name in names])
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        msg = f"{path} is damaged: a file has no usable name ({error!r}). Write the dataset again."
        raise ShardFormatError(msg) from error
    return None  # somebody else's


def _state_json(folder: Folder) -> FolderList | None:
    try:
        contents = _read(folder, "state.json")
        names = [file["filename"] for file in contents["_data_files"]]
        return FolderList("arrow", [_inside(name) for name in names])
    except (OSError, LookupError, TypeError, ValueError):
        return None  # absent, or somebody else's


def _read(folder: Folder, name: str) -> Any:
    """Parse a file; None if there is none."""
    contents = folder.read(name)
    return None if contents is None else json.loads(contents)


def _is_named_by_index(name: str) -> bool:
    return ".mds" in name or (name.startswith("chunk-") and name.endswith(".bin"))


def _mds_file(folder: Folder, shard: dict[str, Any]) -> str:
    """Return the name of a shard: as it is, or compressed if only that is there."""
    names = [_inside(shard[key]["basename"]) for key in ("raw_data", "zip_data") if shard.get(key)]
    return next(filter(folder.holds, names), names[0])


def _inside(name: str) -> str:
    """Return a path that a folder lists, which must not lead out of it."""
    path = posixpath.normpath(name)
    if posixpath.isabs(path) or path.split("/")[0] in ("..", "."):
        raise ValueError(name)
    return path
