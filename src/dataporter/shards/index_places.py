"""The places of an index: beside the data, else in the user's cache folder.

Indexes that are kept there can be found again by what they hold, without pyarrow.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from pathlib import Path

from dataporter.errors import OptionError
from dataporter.shards.files import INDEX_FOLDER
from dataporter.shards.formats.format import Format
from dataporter.shards.listing import Listing
from dataporter.system.files import user_folder

_NAMES = re.compile(r"index-[0-9a-f]{16}\.arrow")


def index_paths(listing: Listing, format: Format, folder: Path | None) -> list[Path]:  # noqa: A002  the word of this room
    """Return the paths where an index may lie, the best first.

    A name stands for what was asked for, so several globs over one folder have an index each.
    Elsewhere than beside the data, it stands for the folder of the data too.
    """
    options = {name: getattr(format.options, name) for name in format.scan_options}
    asked = [listing.request, format.name, options]
    apart = _name([*asked, str(listing.root)])
    if folder is not None:
        return [Path(folder).absolute() / apart]
    cache = user_folder()
    places = [] if cache is None else [cache / apart]
    if isinstance(listing.root, Path):
        places.insert(0, listing.root / INDEX_FOLDER / _name(asked))
    if not places:
        msg = "there is no home folder to keep the index in. Pass index= a folder."
        raise OptionError(msg)
    return places


def _name(asked: object) -> str:
    digest = hashlib.blake2b(json.dumps(asked).encode(), digest_size=8)
    return f"index-{digest.hexdigest()}.arrow"


def kept_indexes(folder: Path) -> list[Path]:
    """Return the files in a folder that are named as indexes, the newest first."""
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.stat().st_mtime_ns, entry.path)
                for entry in entries
                if _NAMES.fullmatch(entry.name)
            ]
    except OSError:  # there is no such folder, or it cannot be read
        return []
    return [Path(path) for _, path in sorted(found, reverse=True)]


def is_index_name(name: str) -> bool:
    """Return True if a file is named as an index."""
    return _NAMES.fullmatch(name) is not None


def may_hold(path: Path, text: str) -> bool:
    """Return False if the index in a file cannot have this fingerprint, root or path.

    The bytes are searched, which is quick. Whether it is so, `read_index` knows.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(json.dumps(text).encode()) >= 0
    except (OSError, ValueError):  # gone, or empty
        return False
