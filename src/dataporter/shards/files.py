"""The files of a dataset on this machine: a folder, a glob, a file or a list of these.

Contents are left to the formats, except for the lists of files that some writers leave in a
folder.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dataporter.errors import OptionError, ShardError, ShardsNotFoundError
from dataporter.shards.listing import (
    BOOKKEEPING,
    Files,
    Folder,
    Kinds,
    Listing,
    Status,
    advice_on_single_samples,
    as_sequence,
    by_suffix,
    is_left_out,
    natural_key,
    refuse_splits,
    require_each_once,
)
from dataporter.shards.shard_file import LocalFile, ShardFile

INDEX_FOLDER = ".dataporter"  # beside the data; hidden, so it is never listed

_TRIED = 64  # files whose status is read to see how long that takes
_QUICK = 100e-6  # seconds; on a network file system it takes longer
_SHOWN = 5
_PATH_OF_URL = re.compile(r"/[a-z][a-z0-9+.-]+:/[^/]")  # Path("s3://bucket/folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalListing(Listing):
    """Files of this machine."""

    root: Path

    threads = min(32, 4 + (os.cpu_count() or 1))

    def statuses(self) -> list[Status]:
        """Return size and time of each file. Where that is slow, threads hide the latency."""
        root = os.path.join(self.root, "")  # strings: 10,000 paths take 0.1 s
        whole = [root + path for path in self.paths]
        start = time.perf_counter()
        found = [_status(path) for path in whole[:_TRIED]]
        if time.perf_counter() - start < _QUICK * len(found):  # threads would disturb each other
            return found + [_status(path) for path in whole[_TRIED:]]
        with ThreadPoolExecutor(self.threads, "dataporter-stat") as pool:
            return found + list(pool.map(_status, whole[_TRIED:]))

    def open(self, path: str) -> ShardFile:
        whole = self.root / path
        _status(str(whole))  # its errors say what to do
        return LocalFile(whole)


def _status(path: str) -> Status:
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        link = "a link that leads nowhere" if os.path.islink(path) else "missing"
        msg = f"{path} is {link}. Restore the file, or leave it out."
        raise ShardsNotFoundError(msg) from error
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}. Make it readable, or leave it out."
        raise ShardError(msg) from error
    return Status(found.st_size, str(found.st_mtime_ns))


def list_files(
    files: Files,
    suffixes: Mapping[str, str],
    *,
    format: str | None = None,  # noqa: A002  the name of the option
) -> LocalListing:
    """List a folder, a glob, a file, or several of these.

    `suffixes` has the format of each known suffix. A folder gives its files of known formats, or
    of `format` alone, and those of its folders. Names that begin with "." or "_" are left out, as
    by Arrow and Spark, and so are the files about the data of MDS, LitData and Hugging Face. A
    folder with a list of its files gives these. A file is taken at its word.
    """
    requests = [os.path.abspath(os.path.expanduser(each)) for each in as_sequence(files)]
    require_each_once(requests)
    kinds = Kinds(suffixes, format, _LocalFolder)
    found: dict[str, None] = {}
    roots = []
    for request in requests:
        root, paths = _find(request, kinds)
        roots.append(root)
        found.update(dict.fromkeys(paths))
    root = _common(roots)
    relative = sorted((_relative(path, root) for path in found), key=natural_key)
    return LocalListing(
        root=Path(root),
        paths=tuple(relative),
        format=kinds.one_of(found, as_sequence(files)),
        request=tuple(sorted({_relative(request, root) for request in requests})),
    )


class _LocalFolder(Folder):
    def read(self, name: str) -> bytes | None:
        try:
            return Path(self.path, name).read_bytes()
        except FileNotFoundError:
            return None

    def holds(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.path, name))

    def names(self) -> list[str]:
        return os.listdir(self.path)


def _find(request: str, kinds: Kinds) -> tuple[str, list[str]]:
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
    root = folder_of_glob(request)
    found = [
        path
        for path in glob.iglob(request, recursive=True)
        if os.path.basename(path) not in BOOKKEEPING and os.path.isfile(path)
    ]
    if not found:
        raise _not_there(request, f"no file matches {request}")
    return root, found


def folder_of_glob(pattern: str) -> str:
    """Return the folder above the first wildcard of a glob."""
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


def _files_in(folder: str, kinds: Kinds, above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """Find the files of known formats in a folder and its folders, links followed."""
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a link to a folder above it
        return
    refuse_splits(_LocalFolder(folder))
    listed = kinds.listed_in(folder)
    if listed is not None:
        yield from (os.path.normpath(os.path.join(folder, name)) for name in listed.names)
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_left_out(entry.name):
                continue
            if entry.is_dir():
                yield from _files_in(entry.path, kinds, (*above, identity))
            elif listed is None and kinds.is_wanted(entry.name) and entry.is_file():
                yield entry.path


# Errors


def _nothing_in(folder: str, kinds: Kinds) -> ShardsNotFoundError:
    what = f"there is no file of a known format ({kinds.in_words()}) in {folder}"
    with contextlib.suppress(OSError):
        advice = advice_on_single_samples(os.listdir(folder))
        if advice:
            return ShardsNotFoundError(f"{what}: {_contents(folder)}.{advice}")
    return ShardsNotFoundError(f"{what}: {_contents(folder)}. Name the files by a glob.")


def _not_there(request: str, what: str) -> ShardsNotFoundError:
    folder = os.path.dirname(request)
    while glob.has_magic(folder) or not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    hint = " Braces are not expanded: write * in their place." if "{" in request else ""
    if _PATH_OF_URL.search(request):
        hint = " Pass a URL as a str: a Path makes one slash of two."
    return ShardsNotFoundError(f"{what}.{hint} The folder {folder} is there: {_contents(folder)}.")


def _contents(folder: str) -> str:
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
            folders = sorted(entry.name for entry in visible if entry.is_dir())
            files = [entry.name for entry in visible if not entry.is_dir()]
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    parts = [by_suffix(files)] if files else []
    if folders:
        more = f" and {len(folders) - _SHOWN} more" if len(folders) > _SHOWN else ""
        parts.append(f"the folders {', '.join(folders[:_SHOWN])}{more}")
    return f"it holds {' and '.join(parts)}" if parts else "it is empty"
