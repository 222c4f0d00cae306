"""The contents of a file by `torch.save`, `pickle.dump` or JSON, and of torch's DCP folders.

The first bytes of a file tell its kind, not its name. The numbers of tensors stay on the disk: of a
file by torch.save, only the pickle is read that describes them.

In a folder of torch.distributed.checkpoint, `.metadata`, a pickle, says where the bytes of every
entry are. A nested dict was cut into one entry for each value; here it is put together again.
"""

from __future__ import annotations

import codecs
import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dataporter.errors import CheckpointDamagedError, CheckpointError
from dataporter.tools.inspect.pickles import read_next_pickle, read_pickle

_HEAD = 64  # bytes that tell the kind
_ZIP = b"PK\x03\x04"
# Before zip files, torch.save wrote a pickled number, then a version and a system, each a pickle.
_OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
_PICKLES_BEFORE_CONTENTS = 3
_CONTENTS = re.compile(r"[^/]+/data\.pkl")  # in a zip file
_PICKLE = b"\x80"
# Pickles of protocols 0 and 1 have no number: they begin with a tuple, dict, list or name.
_OLD_PICKLE = re.compile(rb"[(}\]]|c[\w.]+\n[\w.]+\n")
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
METADATA = ".metadata"


def read_file(path: Path) -> Any:
    """Return the contents of a file. Errors say "it", since the caller knows the name."""
    try:
        if not path.is_file():
            path.stat()
            msg = "it is neither a file nor a folder."
            raise CheckpointError(msg)
        with path.open("rb") as file:
            return _read(file)
    except OSError as error:
        msg = f"it cannot be read: {error.strerror or error}."
        raise CheckpointError(msg) from error


def read_bytes(raw: bytes) -> Any:
    """Return the contents of bytes that were written like a file."""
    return _read(io.BytesIO(raw))


def _read(file: IO[bytes]) -> Any:
    head = file.read(_HEAD)
    file.seek(0)
    try:
        if head.startswith(_ZIP):
            with zipfile.ZipFile(file) as archive:
                return read_pickle(archive.read(_name_of_contents(archive)))
        if head.startswith(_OLD_TORCH):
            for _ in range(_PICKLES_BEFORE_CONTENTS):
                read_next_pickle(file)
            return read_next_pickle(file)
        if head.startswith(_BYTE_ORDER_MARKS) or head.lstrip()[:1] in (b"{", b"["):
            return json.loads(file.read())
        if head.startswith(_PICKLE) or _OLD_PICKLE.match(head):
            return read_pickle(file.read())
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes may lead to anything
        raise damage(error) from error
    if not head:
        msg = "it is empty."
    else:
        msg = (
            "it is not a checkpoint: neither torch.save, pickle nor JSON begins a file with "
            f"{head[:12]!r}."
        )
    raise CheckpointDamagedError(msg)


def _name_of_contents(archive: zipfile.ZipFile) -> str:
    found = [name for name in archive.namelist() if _CONTENTS.fullmatch(name)]
    if len(found) != 1:
        msg = "it is a zip file, but not a complete one of torch.save."
        raise CheckpointDamagedError(msg)
    return found[0]


def damage(error: Exception) -> CheckpointDamagedError:
    """Say that contents are damaged, with the error that reading them led to."""
    # The first sentence only: in the next ones, torch recommends to load without safety.
    why = re.split(r"\.\s|\n", str(error).strip())[0].rstrip(".") or "it ends too early"
    msg = f"it is damaged, cut short or no checkpoint ({type(error).__name__}: {why})."
    return CheckpointDamagedError(msg)


def read_folder(folder: Path) -> tuple[dict[Any, Any], list[tuple[str, str]]]:
    """Return the values except tensors, and the entries that were not read with the reason.

    Lists come back as dicts with indices as keys.
    """
    contents: dict[Any, Any] = {}
    unread = []
    for name, path, info in _entries(folder):
        try:
            _put(contents, path, read_bytes(_bytes_of(folder, info)))
        except CheckpointError as error:
            unread.append((name, str(error)))
    return contents, unread


def _entries(folder: Path) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Yield the name, the path in the dicts and the location of each entry that is no tensor."""
    try:
        metadata = read_pickle((folder / METADATA).read_bytes())
        kinds, stored = metadata.state_dict_metadata, metadata.storage_data
        paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        where = {index.fqn: info for index, info in stored.items()}
        entries = [
            (str(name), tuple(paths.get(name, (name,))), where[name])
            for name, kind in kinds.items()
            if type(kind).__name__ == "BytesStorageMetadata"
        ]
    except CheckpointError:
        raise
    except Exception as error:  # the file may contain anything
        raise damage(error) from error
    yield from entries


def _bytes_of(folder: Path, info: Any) -> bytes:
    try:
        path: Path = (folder / info.relative_path).resolve()
        if not path.is_relative_to(folder.resolve()):
            msg = f"it is outside of the folder, in {info.relative_path!r}."
            raise CheckpointDamagedError(msg)
        if info.offset < 0 or not 0 <= info.length <= path.stat().st_size - info.offset:
            msg = f"{info.relative_path} is cut short."
            raise CheckpointDamagedError(msg)
        with path.open("rb") as file:
            file.seek(info.offset)
            return file.read(info.length)
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise damage(error) from error


def _put(contents: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    *outer, last = path
    for key in outer:
        contents = contents.setdefault(key, {})
        if not isinstance(contents, dict):
            msg = f"{path} is inside of a value."
            raise CheckpointDamagedError(msg)
    contents[last] = value
