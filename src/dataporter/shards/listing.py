"""Listings: the files of a dataset in the order of its rows, wherever they lie.

The order of a listing depends on the names alone, so it is the same on every system. The rules
that choose files are here too: they are the same for folders and for storages.

Writers leave lists of files in their folders, which are believed:

| file | writer | lists |
| --- | --- | --- |
| index.json | MDS, LitData | the files of its folder, and how they are encoded |
| state.json | Hugging Face's `save_to_disk` | the files of its folder: others there are caches |
| dataset_dict.json | Hugging Face's `DatasetDict` | splits, each a folder |
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

from dataporter.errors import OptionError, OptionTypeError, ShardFormatError
from dataporter.shards.shard_file import ShardFile
from dataporter.shards.storage.stored import Url, is_url

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


_DIGITS = re.compile(r"([0-9]+)")
_COMPRESSED = (".gz", ".zst", ".zstd")
_OF_ONE_SAMPLE = (
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".wav", ".flac", ".mp3", ".ogg", ".mp4", ".npz", ".pt"),
)
_SHOWN = 5

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Status(NamedTuple):
    """The evidence that a file was written again."""

    size: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(ABC):
    """The files of a dataset, in the order of its rows."""

    root: Path | Url  # a path is absolute
    paths: tuple[str, ...]  # of each file, relative to root, divided by "/"
    format: str | None  # the one that all files have, if it is known
    request: tuple[str, ...]  # what was asked for, relative to root

    threads: ClassVar[int]  # that scan files: they mostly wait
    tries: ClassVar[int] = 1  # to scan a file, which may have been damaged on its way

    @abstractmethod
    def statuses(self) -> list[Status]:
        """Return the status of each file."""

    @abstractmethod
    def open(self, path: str) -> ShardFile:
        """Open a file."""


def as_sequence(files: Files) -> list[str]:
    """Return what was asked for as a list of names."""
    each = [files] if isinstance(files, str | os.PathLike) else files
    is_named = isinstance(each, Sequence) and all(
        isinstance(one, str | os.PathLike) for one in each
    )
    if not is_named:
        msg = f"files must be a path, a glob or a list of these, found {_in_words(files)}."
        raise OptionTypeError(msg)
    names = [os.fspath(one) for one in each]
    if not names or not all(names):
        found = _in_words(files)
        msg = f"files must name at least one file, found {found}. Name a folder or a glob."
        raise OptionError(msg)
    return names


def require_each_once(names: Sequence[str]) -> None:
    """Raise if a file, a folder or a glob is asked for twice: each file is read once an epoch."""
    for name, times in Counter(names).items():
        if times > 1:
            msg = (
                f"files names {name} {times} times, and each file is read once in an epoch. Name "
                "it once. To read a part of the data more often, give it a weight in a Mixture."
            )
            raise OptionError(msg)


def out_of_order(files: Files) -> tuple[str, str] | None:
    """Return the first two names of a list that are read in the other order; None if none are.

    >>> out_of_order(["data/2.tar", "data/10.tar"])
    >>> out_of_order(["data/10.tar", "data/2.tar"])
    ('data/10.tar', 'data/2.tar')
    """
    names = [str(Url.of(name)) if is_url(name) else name for name in as_sequence(files)]
    for name, following in pairwise(names):
        if natural_key(name) > natural_key(following):
            return name, following
    return None


def _in_words(files: object) -> str:
    """Show what was asked for, without the secrets of URLs."""
    if isinstance(files, str):
        return repr(str(Url.of(files)) if is_url(files) else files)
    if isinstance(files, list | tuple):
        return f"[{', '.join(map(_in_words, files))}]"
    return repr(files)


def is_remote(files: Files) -> bool:
    """Return True if files are named by URLs. All of them must be, or none.

    >>> is_remote("s3://bucket/corpus"), is_remote(["a.parquet", "b.parquet"])
    (True, False)
    """
    names = as_sequence(files)
    urls = [name for name in names if is_url(name)]
    if urls and len(urls) < len(names):
        local = next(name for name in names if not is_url(name))
        msg = (
            f"files must lie in one place, found {Url.of(urls[0])} and {local}. Make a dataset of "
            "each place."
        )
        raise OptionError(msg)
    return bool(urls)


def natural_key(path: str) -> tuple[list[str | int], str]:
    """Return a key that sorts paths, with numbers in them by value.

    >>> sorted(["b-10.bin", "b-9.bin", "a/c", "B-9.bin"], key=natural_key)
    ['B-9.bin', 'a/c', 'b-9.bin', 'b-10.bin']
    """
    parts: list[str | int] = list(_DIGITS.split(path))
    parts[1::2] = map(int, parts[1::2])
    return parts, path  # "01" and "1" have the same value


def is_left_out(name: str) -> bool:
    """Return True for a name of a file or folder that is never a part of the data."""
    return name.startswith((".", "_")) or name in BOOKKEEPING


class Kinds:
    """The formats of files: by the list of their folder, else by suffix."""

    def __init__(
        self, suffixes: Mapping[str, str], wanted: str | None, folder: Callable[[str], Folder]
    ) -> None:
        # The longest first: ".jsonl.gz" comes before ".gz".
        self.suffixes = dict(sorted(suffixes.items(), key=lambda item: -len(item[0])))
        self.wanted = wanted
        self._folder = folder
        self._listed: dict[str, FolderList | None] = {}

    def is_wanted(self, name: str) -> bool:
        format = self._by_suffix(name)  # noqa: A001
        return format is not None and self.wanted in (None, format)

    def of(self, path: str) -> str | None:
        listed = self.listed_in(os.path.dirname(path))  # noqa: PTH120  strings are faster
        return listed.format if listed is not None else self._by_suffix(path)

    def listed_in(self, folder: str) -> FolderList | None:
        """Return the files that a folder lists, if it does."""
        if folder not in self._listed:
            self._listed[folder] = read_folder_list(self._folder(folder))
        return self._listed[folder]

    def one_of(self, paths: Iterable[str], asked: Sequence[str]) -> str | None:
        """Return the format of files, which must have the same one."""
        if self.wanted is not None:
            return self.wanted
        formats = Counter(self.of(path) for path in paths)
        if len(formats) > 1:
            msg = (
                f"files have several formats: {by_suffix(paths)} in {', '.join(asked)}. "
                "Name those of one format by a glob, such as '**/*.parquet', or pass format=."
            )
            raise OptionError(msg)
        return next(iter(formats))

    def in_words(self) -> str:
        return self.wanted or ", ".join(sorted(self.suffixes))

    def _by_suffix(self, name: str) -> str | None:
        lower = name.lower()
        for suffix, format in self.suffixes.items():  # noqa: A001
            if lower.endswith(suffix):
                return format
        return None


def by_suffix(paths: Iterable[str]) -> str:
    """Count files by suffix, such as "10 .parquet, 2 .json"."""
    suffixes = Counter(_suffix(path) for path in paths)
    common = sorted(suffixes.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(common) - _SHOWN} other suffixes" if len(common) > _SHOWN else ""
    return ", ".join(f"{count:,} {suffix}" for suffix, count in common[:_SHOWN]) + more


def advice_on_single_samples(paths: Iterable[str]) -> str:
    """Return a sentence for files of a sample each, with a leading space, or ""."""
    if not any(path.lower().endswith(_OF_ONE_SAMPLE) for path in paths):
        return ""
    return (
        " Images, sounds and other files of one sample each are read by a Dataset of your own, "
        "which the loader takes as it is; or pack many into each of some .tar files."
    )


def _suffix(path: str) -> str:
    """Return the suffix of a name, with that before a compression's."""
    found = PurePosixPath(path).suffixes
    count = 2 if found and found[-1] in _COMPRESSED else 1
    return "".join(found[-count:]) or "without suffix"
