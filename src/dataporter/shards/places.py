"""The places of an index and of decoded blocks.

An index lies beside the data, else in the user's cache folder. Those that are kept there can be
found again by what they hold, without pyarrow. The folder of a dataset's decoded blocks is shared
by all that read the same data on a machine. A file system without locks cannot be shared. There,
each run has a folder of its own, which it removes at its end, or the next run on this machine if it
was killed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from dataporter.errors import OptionError, ShardWarning
from dataporter.shards.files import INDEX_FOLDER
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index
from dataporter.shards.listing import Listing
from dataporter.system.files import user_folder
from dataporter.user_warnings import warn_user

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


try:
    import fcntl
except ModuleNotFoundError:  # Windows, where `Porter` refuses to start
    fcntl = None  # type: ignore[assignment]

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_ALONE = "alone"  # the beginning of the name of a folder that is not shared


def cache_folder(parent: Path | None, index: Index, format_: Format) -> Path:
    """Return the folder for a dataset's decoded blocks, in the user's cache folder or `parent`.

    It is not made yet, unless it is one that cannot be shared.
    """
    parent = (parent or default_folder()).absolute()
    if isinstance(index.root, Path) and index.root.is_relative_to(parent):
        msg = (
            f"cache={str(parent)!r} holds the data itself, in {index.root}, and what lies in a "
            "cache may be deleted. Pass another folder."
        )
        raise OptionError(msg)
    folder = parent / _key(index, format_)
    return folder if _has_locks(parent) else _own_folder(folder)


def default_folder() -> Path:
    """Return the folder of decoded blocks in the user's cache folder."""
    folder = user_folder()
    if folder is None:
        msg = "there is no home folder to keep decoded blocks in. Pass cache= a folder."
        raise OptionError(msg)
    return folder / "blocks"


def is_shared(folder: Path) -> bool:
    """Return True unless a folder belongs to one run."""
    return not folder.name.startswith(_ALONE)


def entries_of(index: Index) -> int:
    """Count the entries of the table of decoded blocks: of a storage, one more for each file."""
    return len(index.rows) + (0 if index.is_local else len(index.paths))


def name_of_contents(index: Index, format_: Format) -> str:
    """Name the samples of files as they are read: the same name, the same samples."""
    identity = f"{index.fingerprint} {format_.name} {format_.options}"
    digest = hashlib.blake2b(identity.encode(), digest_size=16)
    # A fingerprint looks at some of the contents only: a file written again is read again.
    digest.update(index.sizes.tobytes() + json.dumps(list(index.versions)).encode())
    return digest.hexdigest()


def _key(index: Index, format_: Format) -> str:
    """Name the folder of decoded blocks."""
    name = name_of_contents(index, format_)
    # Elsewhere parts of files are kept too, so the table has other entries.
    return name if index.is_local else f"{name}-stored"


def _has_locks(folder: Path) -> bool:
    """Try a lock. A folder that cannot be written to is named later, when it is used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    return True


def _own_folder(shared: Path) -> Path:
    """Make a folder for this run alone, and remove those of runs that are dead."""
    warn_user(
        f"The file system of {shared.parent} has no locks, so decoded blocks cannot be shared with "
        "other processes: each rank keeps its own. Pass cache= a folder on a local disk.",
        ShardWarning,
    )
    host = re.sub(r"\W", "", socket.gethostname())
    shared.mkdir(parents=True, exist_ok=True)
    for folder in shared.glob(f"{_ALONE}-{host}-*"):
        with suppress(OSError, ValueError):
            if not _is_running(int(folder.name.split("-")[2])):
                shutil.rmtree(folder)
    return Path(tempfile.mkdtemp(prefix=f"{_ALONE}-{host}-{os.getpid()}-", dir=shared))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
