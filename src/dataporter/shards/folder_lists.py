"""Lists of files that the writer of a dataset leaves in its folder.

| file | writer | lists |
| --- | --- | --- |
| index.json | MDS, LitData | the files of its folder, and how they are encoded |
| state.json | Hugging Face's `save_to_disk` | the files of its folder: others there are caches |
| dataset_dict.json | Hugging Face's `DatasetDict` | splits, each a folder |
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from dataporter.errors import OptionError, ShardFormatError

# Files about the data, never a part of it.
BOOKKEEPING = {"index.json", "state.json", "dataset_dict.json", "dataset_info.json"}


class FolderList(NamedTuple):
    """The files that a folder lists."""

    format: str
    paths: list[str]  # absolute


def read_folder_list(folder: str) -> FolderList | None:
    """Return the files that a folder lists, or None if it lists none."""
    return _index_json(folder) or _state_json(folder)


def refuse_splits(folder: str) -> None:
    """Raise if a folder holds the splits of a `DatasetDict`: train and test are no one dataset."""
    try:
        splits = [str(name) for name in _read(Path(folder, "dataset_dict.json"))["splits"]]
    except (OSError, LookupError, TypeError, ValueError):
        return  # absent, or somebody else's
    if splits:
        msg = (
            f"{folder} holds several splits: {', '.join(splits)}. Name the folder of one, such as "
            f"{Path(folder, splits[0])}."
        )
        raise OptionError(msg)


def _index_json(folder: str) -> FolderList | None:
    path = Path(folder, "index.json")
    try:
        contents = _read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if not any(_is_named_by_index(file.name) for file in Path(folder).iterdir()):
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
            return FolderList("litdata", [_inside(folder, name) for name in names])
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        msg = f"{path} is damaged: a file has no usable name ({error!r}). Write the dataset again."
        raise ShardFormatError(msg) from error
    return None  # somebody else's


def _state_json(folder: str) -> FolderList | None:
    try:
        contents = _read(Path(folder, "state.json"))
        names = [file["filename"] for file in contents["_data_files"]]
        return FolderList("arrow", [_inside(folder, name) for name in names])
    except (OSError, LookupError, TypeError, ValueError):
        return None  # absent, or somebody else's


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return json.load(file)


def _is_named_by_index(name: str) -> bool:
    return ".mds" in name or (name.startswith("chunk-") and name.endswith(".bin"))


def _mds_file(folder: str, shard: dict[str, Any]) -> str:
    """Return the path of a shard: as it is, or compressed if only that is there."""
    names = [shard[key]["basename"] for key in ("raw_data", "zip_data") if shard.get(key)]
    paths = [_inside(folder, name) for name in names]
    return next(filter(os.path.exists, paths), paths[0])


def _inside(folder: str, name: str) -> str:
    path = os.path.normpath(Path(folder, name))
    if Path(folder) not in Path(path).parents:
        raise ValueError(name)
    return path
