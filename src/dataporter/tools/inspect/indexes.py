"""The kept indexes of datasets in files, found by place or by fingerprint.

Only files of indexes are read: neither the data nor a network is touched, and nothing is written.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from dataporter.errors import ShardsNotFoundError
from dataporter.shards.extra import shards_extra
from dataporter.shards.files import INDEX_FOLDER, folder_of_glob
from dataporter.shards.index import Index
from dataporter.shards.index_places import is_index_name, kept_indexes, may_hold
from dataporter.shards.storage.urls import Url, is_url
from dataporter.system.files import user_folder


def index_with(fingerprint: str) -> Index | None:
    """Find the index with this fingerprint in the user's cache folder."""
    may_match = (path for path in _of_user() if may_hold(path, fingerprint))
    return next((each for each in _read(may_match) if each.fingerprint == fingerprint), None)


def indexes_of(place: str) -> list[Index]:
    """Find the indexes of a folder, glob, file or URL, or those in a folder of indexes.

    Several globs over one folder have an index each. Raise if there is none.
    """
    found = _in_storage(Url.of(place)) if is_url(place) else _on_this_machine(place)
    if not found:
        shown = shown_place(place)
        if not is_url(place) and not glob.has_magic(place) and not os.path.lexists(_whole(place)):
            msg = f"there is no file or folder {shown}. Name the data or its index by --data."
        else:
            msg = (
                f"there is no index of {shown} that can be read. Build it with `dataporter index "
                f"{shown}` and the options of the training script, or name the folder of the index."
            )
        raise ShardsNotFoundError(msg)
    return found


def shown_place(place: str) -> str:
    """Return a place as it may be shown: a URL without secrets."""
    return str(Url.of(place)) if is_url(place) else place


def _on_this_machine(place: str) -> list[Index]:
    whole = Path(_whole(place))
    if is_index_name(whole.name):
        return list(_read([whole]))
    if whole.is_dir():
        return list(_read(kept_indexes(whole))) or _of_root(whole)
    if glob.has_magic(place) and not os.path.lexists(whole):
        return _of_root(Path(folder_of_glob(str(whole))))
    return [each for each in _of_root(whole.parent) if whole.name in each.paths]


def _in_storage(url: Url) -> list[Index]:
    folder = Url(url.scheme, folder_of_glob(url.place))
    found = _of_root(folder)
    if found or folder != url:
        return found
    above, _, name = url.place.rpartition("/")  # it may be a file
    return [each for each in _of_root(Url(url.scheme, above)) if name in each.paths]


def _of_root(root: Path | Url) -> list[Index]:
    """Return the indexes of files below a root: those beside them, and those of the user."""
    beside = kept_indexes(root / INDEX_FOLDER) if isinstance(root, Path) else []
    may_match = (path for path in _of_user() if may_hold(path, str(root)))
    return [*_read(beside), *(each for each in _read(may_match) if each.root == root)]


def _of_user() -> list[Path]:
    folder = user_folder()
    return [] if folder is None else kept_indexes(folder)


def _read(paths: Iterable[Path]) -> Iterator[Index]:
    for path in paths:
        with shards_extra():  # the other states are shown without it
            from dataporter.shards.index_file import read_index  # noqa: PLC0415

        # Data that was moved takes the index beside it along.
        is_beside = path.parent.name == INDEX_FOLDER
        index = read_index(path, path.parent.parent if is_beside else None)
        if index is not None:
            yield index


def _whole(place: str) -> str:
    return os.path.abspath(os.path.expanduser(place))  # noqa: PTH100, PTH111  a glob is no path
