"""The files of a dataset: a folder, a glob, a file or a list of these becomes a sorted listing.

The order of a listing depends on the names alone, so it is the same on every system. Contents are
left to the formats, except for the lists of files that some writers leave in a folder.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dataporter.errors import OptionError, OptionTypeError, ShardsNotFoundError
from dataporter.shards.folder_lists import (
    BOOKKEEPING,
    FolderList,
    read_folder_list,
    refuse_splits,
)

INDEX_FOLDER = ".dataporter"  # beside the data; hidden, so it is never listed

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_DIGITS = re.compile(r"([0-9]+)")
_COMPRESSED = (".gz", ".zst", ".zstd")
_SHOWN = 5

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a dataset, in the order of its rows."""

    root: Path  # absolute
    paths: tuple[str, ...]  # of each file, relative to root, divided by "/"
    format: str | None  # the one that all files have, if it is known
    request: tuple[str, ...]  # what was asked for, relative to root


def list_files(files: Files, suffixes: Mapping[str, str], *, format: str | None = None) -> Listing:  # noqa: A002  the name of the option
    """List a folder, a glob, a file, or several of these.

    `suffixes` has the format of each known suffix. A folder gives its files of known formats, or
    of `format` alone, and those of its folders. Names that begin with "." or "_" are left out, as
    by Arrow and Spark, and so are the files about the data of MDS, LitData and Hugging Face. A
    folder with a list of its files gives these. A file is taken at its word.
    """
    requests = [_absolute(each) for each in _as_sequence(files)]
    kinds = _Kinds(suffixes, format)
    found: dict[str, None] = {}
    roots = []
    for request in requests:
        root, paths = _find(request, kinds)
        roots.append(root)
        found.update(dict.fromkeys(paths))
    root = _common(roots)
    relative = sorted((_relative(path, root) for path in found), key=natural_key)
    return Listing(
        root=Path(root),
        paths=tuple(relative),
        format=_one_format(found, kinds, files),
        request=tuple(sorted({_relative(request, root) for request in requests})),
    )


def natural_key(path: str) -> tuple[list[str | int], str]:
    """Return a key that sorts paths, with numbers in them by value.

    >>> sorted(["b-10.bin", "b-9.bin", "a/c", "B-9.bin"], key=natural_key)
    ['B-9.bin', 'a/c', 'b-9.bin', 'b-10.bin']
    """
    parts: list[str | int] = list(_DIGITS.split(path))
    parts[1::2] = map(int, parts[1::2])
    return parts, path  # "01" and "1" have the same value


# Requests


def _as_sequence(files: Files) -> list[str]:
    each = [files] if isinstance(files, str | os.PathLike) else files
    is_named = isinstance(each, Sequence) and all(
        isinstance(one, str | os.PathLike) for one in each
    )
    if not is_named:
        msg = f"files must be a path, a glob or a list of these, found {files!r}."
        raise OptionTypeError(msg)
    names = [os.fspath(one) for one in each]
    if not names or not all(names):
        msg = f"files must name at least one file, found {files!r}. Name a folder or a glob."
        raise OptionError(msg)
    return names


def _absolute(name: str) -> str:
    if _URL.match(name):
        msg = (
            f"{name!r} is a URL, and only files of this machine can be read. Download the files "
            "or mount the storage, and name the folder."
        )
        raise OptionError(msg)
    return os.path.abspath(os.path.expanduser(name))


def _find(request: str, kinds: _Kinds) -> tuple[str, list[str]]:
    """Return the root of a request, and the files that it finds."""
    if os.path.isdir(request):
        found = list(_files_in(request, kinds))
        if not found:
            raise _nothing_in(request, kinds)
        return request, found
    if os.path.lexists(request):
        return os.path.dirname(request), [request]
    if not glob.has_magic(request):
        raise _not_there(request, f"there is no file or folder {request}")
    root = _folder_of_glob(request)
    found = [
        path
        for path in glob.iglob(request, recursive=True)
        if os.path.basename(path) not in BOOKKEEPING and os.path.isfile(path)
    ]
    if not found:
        raise _not_there(request, f"no file matches {request}")
    return root, found


def _folder_of_glob(pattern: str) -> str:
    folder = pattern
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder


def _common(roots: list[str]) -> str:
    try:
        return os.path.commonpath(roots)
    except ValueError as error:  # Windows: several drives
        msg = f"files must lie on one drive, found {', '.join(sorted(set(roots)))}."
        raise OptionError(msg) from error


def _relative(path: str, root: str) -> str:
    relative = path[len(root) :].lstrip(os.sep) if path != root else "."
    return relative.replace(os.sep, "/")


# Folders


def _files_in(folder: str, kinds: _Kinds, above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """Find the files of known formats in a folder and its folders, links followed."""
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a link to a folder above it
        return
    refuse_splits(folder)
    listed = kinds.listed_in(folder)
    if listed is not None:
        yield from listed.paths
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "_")) or entry.name in BOOKKEEPING:
                continue
            if entry.is_dir():
                yield from _files_in(entry.path, kinds, (*above, identity))
            elif listed is None and kinds.is_wanted(entry.name) and entry.is_file():
                yield entry.path


class _Kinds:
    """The formats of files: by the list of their folder, else by suffix."""

    def __init__(self, suffixes: Mapping[str, str], wanted: str | None) -> None:
        # The longest first: ".jsonl.gz" comes before ".gz".
        self.suffixes = dict(sorted(suffixes.items(), key=lambda item: -len(item[0])))
        self.wanted = wanted
        self._listed: dict[str, FolderList | None] = {}

    def is_wanted(self, name: str) -> bool:
        format = self._by_suffix(name)  # noqa: A001
        return format is not None and self.wanted in (None, format)

    def of(self, path: str) -> str | None:
        listed = self.listed_in(os.path.dirname(path))
        return listed.format if listed is not None else self._by_suffix(path)

    def listed_in(self, folder: str) -> FolderList | None:
        """Return the files that a folder lists, if it does."""
        if folder not in self._listed:
            self._listed[folder] = read_folder_list(folder)
        return self._listed[folder]

    def _by_suffix(self, name: str) -> str | None:
        lower = name.lower()
        for suffix, format in self.suffixes.items():  # noqa: A001
            if lower.endswith(suffix):
                return format
        return None


# Errors


def _one_format(paths: Mapping[str, None], kinds: _Kinds, files: Files) -> str | None:
    if kinds.wanted is not None:
        return kinds.wanted
    formats = Counter(kinds.of(path) for path in paths)
    if len(formats) > 1:
        msg = (
            f"files have several formats: {_by_suffix(paths)} in {', '.join(_as_sequence(files))}. "
            "Name those of one format by a glob, such as '**/*.parquet', or pass format=."
        )
        raise OptionError(msg)
    return next(iter(formats))


def _nothing_in(folder: str, kinds: _Kinds) -> ShardsNotFoundError:
    known = kinds.wanted or ", ".join(sorted(kinds.suffixes))
    what = f"there is no file of a known format ({known}) in {folder}"
    return ShardsNotFoundError(f"{what}: {_contents(folder)}. Name the files by a glob.")


def _not_there(request: str, what: str) -> ShardsNotFoundError:
    folder = os.path.dirname(request)
    while glob.has_magic(folder) or not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    hint = " Braces are not expanded: write * in their place." if "{" in request else ""
    return ShardsNotFoundError(f"{what}.{hint} The folder {folder} is there: {_contents(folder)}.")


def _contents(folder: str) -> str:
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
            folders = sorted(entry.name for entry in visible if entry.is_dir())
            files = [entry.name for entry in visible if not entry.is_dir()]
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    parts = [_by_suffix(files)] if files else []
    if folders:
        more = f" and {len(folders) - _SHOWN} more" if len(folders) > _SHOWN else ""
        parts.append(f"the folders {', '.join(folders[:_SHOWN])}{more}")
    return f"it holds {' and '.join(parts)}" if parts else "it is empty"


def _by_suffix(paths: Mapping[str, None] | list[str]) -> str:
    """Count files by suffix, such as "10 .parquet, 2 .json"."""
    suffixes = Counter(_suffix(path) for path in paths)
    common = sorted(suffixes.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(common) - _SHOWN} other suffixes" if len(common) > _SHOWN else ""
    return ", ".join(f"{count:,} {suffix}" for suffix, count in common[:_SHOWN]) + more


def _suffix(path: str) -> str:
    """Return the suffix of a name, with that before a compression's."""
    found = PurePosixPath(path).suffixes
    count = 2 if found and found[-1] in _COMPRESSED else 1
    return "".join(found[-count:]) or "without suffix"
