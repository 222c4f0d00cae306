"""The places of an index: beside the data, else in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from dataporter.errors import OptionError
from dataporter.shards.files import INDEX_FOLDER
from dataporter.shards.formats.format import Format
from dataporter.shards.listing import Listing


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
    cache = _cache_folder()
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


def _cache_folder() -> Path | None:
    try:
        if sys.platform == "darwin":
            caches = Path.home() / "Library" / "Caches"
        elif os.name == "nt":
            caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        else:
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no home folder
        return None
    return caches / "dataporter"
