"""The contents of one file: of `torch.save`, of `pickle.dump`, or JSON.

What a file is, its first bytes say, not its name. Tensors stay on the disk: of what torch.save
wrote, only the pickle is read that says what is where.
"""

from __future__ import annotations

import codecs
import io
import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import IO, Any

from dataporter.errors import CheckpointDamagedError, CheckpointError
from dataporter.tools.inspect.pickles import read_next_pickle, read_pickle

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_JSON = b"{"
# What torch.save wrote first before it wrote zip files: a pickled number.
_OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
_BEFORE_CONTENTS = ("magic number", "version", "what system it was")  # pickles in such a file
_CONTENTS = re.compile(r"[^/]+/data\.pkl")  # in a zip file; tensors' numbers lie beside it
_HEAD = 64  # bytes

# How those of protocols 0 and 1 begin, which have no number: a tuple, dict or list, or a name.
_OLD_PICKLE = re.compile(rb"[(}\]]|c[\w.]+\n[\w.]+\n")
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # before text, by Windows


def read_file(path: Path) -> Any:
    """Return what a file holds, or raise an error that says what it is instead.

    The message begins with "it": whoever asked knows the file's name.
    """
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
    """Return what bytes hold that were written as a file is."""
    return _read(io.BytesIO(raw))


def _read(file: IO[bytes]) -> Any:
    kind = _kind_of(file.read(_HEAD))
    file.seek(0)
    if kind in (_ZIP, _OLD_TORCH):
        return _read_torch(file, kind)
    return _read_text_or_pickle(file.read(), kind)


def _kind_of(head: bytes) -> bytes:
    """Tell by its first bytes how something was written."""
    if not head:
        msg = "it is empty."
        raise CheckpointDamagedError(msg)
    for kind in (_ZIP, _OLD_TORCH, _PICKLE):
        if head.startswith(kind):
            return kind
    if head.startswith(_MARKS) or head.lstrip()[:1] in (b"{", b"["):
        return _JSON
    if _OLD_PICKLE.match(head):
        return _PICKLE
    msg = (
        "it is not a checkpoint: neither torch.save, pickle nor JSON begins a file with "
        f"{head[:12]!r}."
    )
    raise CheckpointDamagedError(msg)


def _read_text_or_pickle(raw: bytes, kind: bytes) -> Any:
    try:
        return json.loads(raw) if kind == _JSON else read_pickle(raw)
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes may lead to anything
        raise damage(error) from error


def _read_torch(file: IO[bytes], kind: bytes) -> Any:
    try:
        if kind == _OLD_TORCH:
            for _ in _BEFORE_CONTENTS:
                read_next_pickle(file)
            return read_next_pickle(file)
        with zipfile.ZipFile(file) as archive:
            return read_pickle(archive.read(_place_of_contents(archive)))
    except CheckpointError:
        raise
    except Exception as error:  # likewise
        raise damage(error) from error


def _place_of_contents(archive: zipfile.ZipFile) -> str:
    found = [name for name in archive.namelist() if _CONTENTS.fullmatch(name)]
    if len(found) != 1:
        msg = "it is a zip file, but not one of torch.save, or was not written to its end."
        raise CheckpointDamagedError(msg)
    return found[0]


def damage(error: Exception) -> CheckpointDamagedError:
    """Say that something was not written whole, by the error that reading it led to."""
    # The first sentence only: in its next ones, torch recommends to load without safety.
    why = re.split(r"\.\s|\n", str(error).strip())[0].rstrip(".") or "it ends too early"
    msg = f"it is damaged, cut short or no checkpoint ({type(error).__name__}: {why})."
    return CheckpointDamagedError(msg)
