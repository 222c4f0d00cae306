"""The files of a dataset in a storage: folders, globs, files, or a list of these, as URLs.

A storage is listed once, and the rules for folders are applied to the names found. Over HTTP
nothing can be listed, so each URL is a file.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dataporter.errors import OptionError, ShardsNotFoundError
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
from dataporter.shards.shard_file import ShardFile
from dataporter.shards.storage.remote_file import RemoteFile
from dataporter.shards.storage.storage import OBJECT_STORES, TRIES, Storage
from dataporter.shards.storage.stored import WEB, StorageOptions, Stored, Url, urls_with_secrets

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredListing(Listing):
    """Files in a storage."""

    root: Url
    storage: Storage
    stored: Mapping[str, Stored] = field(repr=False)  # by path; also of files about the data

    threads = 16
    tries = TRIES

    def statuses(self) -> list[Status]:
        return [Status(*self.stored[path][1:]) for path in self.paths]

    def open(self, path: str) -> ShardFile:
        return RemoteFile(self.storage, self.stored[path], self.stored)


class _Request(NamedTuple):
    """The files that one URL asks for."""

    folder: Url
    name: str | None = None  # of a file in it; it may be a folder after all
    pattern: str | None = None  # of files in it


def list_stored(
    files: Files,
    suffixes: Mapping[str, str],
    options: StorageOptions,
    *,
    format: str | None = None,  # noqa: A002  the name of the option
) -> StoredListing:
    """List folders, globs and files of a storage, by the rules of `list_files`."""
    names = as_sequence(files)
    require_each_once([str(Url.of(name)) for name in names])
    kinds = Kinds(suffixes, format, lambda path: _StoredFolder(path, tree))
    requests = [_request(name, kinds) for name in names]
    root = _common([request.folder for request in requests])
    full_urls = {**options.full_urls, **urls_with_secrets(names)}
    storage = Storage(root, replace(options, full_urls=full_urls))
    with ExitStack() as to_close:
        to_close.callback(storage.close)
        tree = _Tree(storage)
        tree.find([_file(request, root) for request in requests if request.name is not None])
        found = [path for request in requests for path in _find(request, root, tree, kinds)]
        paths = sorted(set(found), key=natural_key)
        listing = StoredListing(
            root=root,
            paths=tuple(paths),
            format=kinds.one_of(paths, [str(Url.of(name)) for name in names]),
            request=tuple(sorted({_path_in(root, Url.of(name)) or "." for name in names})),
            storage=storage,
            stored=tree.files,
        )
        to_close.pop_all()  # the listing has it now
        return listing


# Requests


def _request(name: str, kinds: Kinds) -> _Request:
    url = Url.of(name)
    if url.scheme in OBJECT_STORES and not url.place.partition("/")[0]:
        msg = f"{url}/ names no bucket or host. Write {url.scheme}://name/folder/."
        raise OptionError(msg)
    if url.scheme in OBJECT_STORES - WEB and Url.has_query(name):
        msg = (
            f"a URL of {url.scheme}:// takes no query, found {url}?…. Write [?] for a ? that is "
            "part of a name, and pass credentials by storage_options."
        )
        raise OptionError(msg)
    if url.scheme in WEB:
        folder, _, file = url.place.rpartition("/")
        if not folder or name.partition("?")[0].endswith("/"):
            msg = (
                f"{url} names no file, and folders cannot be listed over HTTP. Pass a list of the "
                "URLs of all files."
            )
            raise OptionError(msg)
        return _Request(Url(url.scheme, folder), name=file)
    if glob.has_magic(url.place):
        plain = url.place
        while glob.has_magic(plain):
            plain = plain.rpartition("/")[0]
        return _Request(Url(url.scheme, plain), pattern=url.place[len(plain) + 1 :])
    folder, _, file = url.place.rpartition("/")
    if folder and kinds.is_wanted(file) and not name.endswith("/"):
        return _Request(Url(url.scheme, folder), name=file)
    return _Request(url)


def _common(folders: Sequence[Url]) -> Url:
    if len({(folder.scheme, folder.place.partition("/")[0]) for folder in folders}) > 1:
        shown = " and ".join(sorted({str(folder) for folder in folders})[:_SHOWN])
        msg = f"files must lie in one bucket or on one host, found {shown}."
        raise OptionError(msg)
    return Url(folders[0].scheme, posixpath.commonpath([folder.place for folder in folders]))


def _path_in(root: Url, url: Url) -> str:
    return url.place[len(root.place) :].strip("/")


# Files


class _Tree:
    """The files of a storage that have been listed or found so far."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.files: dict[str, Stored] = {}

    def list(self, folder: str) -> list[str]:
        """List all files below a folder."""
        found = {stored.path: stored for stored in self.storage.list(folder)}
        self.files.update(found)
        return list(found)

    def find(self, paths: Sequence[str]) -> None:
        """Find files, several at a time."""
        self.files.update(self.storage.find_all(paths))


class _StoredFolder(Folder):
    """A folder of a storage. Only names that were listed are read, and all of them are JSON.

    A list that arrived damaged is fetched again: without it other files would be among the data.
    """

    def __init__(self, path: str, tree: _Tree) -> None:
        super().__init__(path)
        self._tree = tree

    def read(self, name: str) -> bytes | None:
        stored = self._tree.files.get(posixpath.join(self.path, name))
        if stored is None:
            return None
        for _ in range(TRIES):
            contents = b"".join(self._tree.storage.read(stored, [(0, stored.size)]))
            if _is_json(contents):
                break
        return contents

    def holds(self, name: str) -> bool:
        return posixpath.join(self.path, name) in self._tree.files

    def names(self) -> Iterator[str]:
        return (
            posixpath.basename(path)
            for path in self._tree.files
            if posixpath.dirname(path) == self.path
        )


def _is_json(contents: bytes) -> bool:
    try:
        json.loads(contents)
    except ValueError:
        return False
    return True


def _file(request: _Request, root: Url) -> str:
    return posixpath.join(_path_in(root, request.folder), request.name or "")


def _find(request: _Request, root: Url, tree: _Tree, kinds: Kinds) -> list[str]:
    folder = _path_in(root, request.folder)
    if request.name is not None:
        path = _file(request, root)
        if path in tree.files:
            return [path]
        if request.folder.scheme in WEB:
            raise _not_there(root / path)
        folder = path  # Spark's folders are named as files
    listed = tree.list(folder)
    if request.pattern is not None and posixpath.join(folder, request.pattern) in tree.files:
        found = [posixpath.join(folder, request.pattern)]  # a name with brackets, at its word
    elif request.pattern is not None:
        start, patterns = len(folder) + 1 if folder else 0, request.pattern.split("/")
        found = [
            path
            for path in listed
            if _matches(path[start:].split("/"), patterns)
            and posixpath.basename(path) not in BOOKKEEPING
        ]
    else:
        found = _chosen(folder, listed, tree, kinds)
    if not found:
        where = root / folder if folder else root
        raise _nothing_in(where, request.pattern, listed, kinds)
    return found


def _chosen(folder: str, listed: Sequence[str], tree: _Tree, kinds: Kinds) -> list[str]:
    """Choose the files of a folder that are a part of the data."""
    start = len(folder) + 1 if folder else 0
    visible = [path for path in listed if not any(map(_is_hidden, path[start:].split("/")[:-1]))]
    folders = dict.fromkeys(posixpath.dirname(path) for path in visible)
    found = []
    for each in folders:
        refuse_splits(_StoredFolder(each, tree))
        if each_list := kinds.listed_in(each):
            found += [posixpath.join(each, name) for name in each_list.names]
    for path in visible:
        above, name = posixpath.split(path)
        if not is_left_out(name) and not kinds.listed_in(above) and kinds.is_wanted(name):
            found.append(path)
    missing = [path for path in found if path not in tree.files]
    if missing:
        msg = f"{missing[0]} is missing, although its folder lists it. Upload it again."
        raise ShardsNotFoundError(msg)
    return found


def _is_hidden(folder: str) -> bool:
    return folder.startswith((".", "_"))


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return True if the parts of a path match those of a glob, as by `glob.glob`."""
    if not patterns or not parts:
        return not parts and all(pattern == "**" for pattern in patterns)
    is_shown = not parts[0].startswith(".") or patterns[0].startswith(".")
    if patterns[0] == "**":
        skipped = _matches(parts, patterns[1:])
        return skipped or (is_shown and _matches(parts[1:], patterns))
    is_match = is_shown and fnmatch.fnmatchcase(parts[0], patterns[0])
    return is_match and _matches(parts[1:], patterns[1:])


# Errors


def _not_there(url: Url) -> ShardsNotFoundError:
    advice = "Check the URL and the credentials."
    if glob.has_magic(url.place):
        advice = "Globs cannot be listed over HTTP: pass a list of the URLs of all files."
    return ShardsNotFoundError(f"there is no file {url}. {advice}")


def _nothing_in(
    where: Url, pattern: str | None, listed: Sequence[str], kinds: Kinds
) -> ShardsNotFoundError:
    what = (
        f"there is no file of a known format ({kinds.in_words()}) in {where}"
        if pattern is None
        else f"no file matches {pattern} in {where}"
    )
    holds = f"it holds {by_suffix(listed)}" if listed else "nothing is there"
    advice = advice_on_single_samples(listed) or " Check the URL, or name the files by a glob."
    return ShardsNotFoundError(f"{what}: {holds}.{advice}")
