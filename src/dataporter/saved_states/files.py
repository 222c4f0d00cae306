"""The contents of one file: of `torch.save`, of `pickle.dump`, or JSON.

What a file is, its first bytes say, not its name. Tensors stay on the disk: gigabytes of
weights are mapped, not read.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from dataporter.errors import CheckpointDamagedError, CheckpointError
from dataporter.saved_states.pickles import Blank, read_pickle, refusal

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_JSON = b"{"
# What torch.save wrote first before it wrote zip files: a pickled number.
_OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
_HEAD = 64  # bytes

# What is harmless, often beside a state (arrays are in those of generators, the rest among the
# hyper-parameters that trainers save) and not needed.
_BLANKED = [
    "argparse.Namespace",
    "builtins.bytes",
    "builtins.complex",
    "builtins.slice",
    "datetime.date",
    "datetime.datetime",
    "datetime.timedelta",
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    "numpy.ndarray",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.PureWindowsPath",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.WindowsPath",
    "pytorch_lightning.utilities.parsing.AttributeDict",
]


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
            head = file.read(_HEAD)
        kind = _kind_of(head)
        if kind in (_ZIP, _OLD_TORCH):
            return _read_torch(path, mapped=kind == _ZIP)
        return _read_text_or_pickle(path.read_bytes(), kind)
    except OSError as error:
        msg = f"it cannot be read: {error.strerror or error}."
        raise CheckpointError(msg) from error


def read_bytes(raw: bytes) -> Any:
    """Return what bytes hold that were written as a file is."""
    kind = _kind_of(raw[:_HEAD])
    if kind in (_ZIP, _OLD_TORCH):
        return _read_torch(io.BytesIO(raw), mapped=False)
    return _read_text_or_pickle(raw, kind)


def _kind_of(head: bytes) -> bytes:
    """Tell by its first bytes how something was written."""
    if not head:
        msg = "it is empty."
        raise CheckpointDamagedError(msg)
    for kind in (_ZIP, _OLD_TORCH, _PICKLE):
        if head.startswith(kind):
            return kind
    if head.lstrip()[:1] in (b"{", b"["):
        return _JSON
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


def _read_torch(file: Path | io.BytesIO, *, mapped: bool) -> Any:
    try:
        with warnings.catch_warnings(), safe_globals([(Blank, name) for name in _BLANKED]):
            warnings.simplefilter("ignore")  # they are for whoever wrote the file
            place = "cpu" if mapped else "meta"  # either way, no tensor is kept in memory
            return torch.load(file, map_location=place, weights_only=True, mmap=mapped)
    except Exception as error:
        if names := _refused_names(file) or re.findall(r"GLOBAL (\S+)", str(error)):
            raise refusal(names) from error
        raise damage(error) from error


def _refused_names(file: Path | io.BytesIO) -> list[str]:
    """What a file has called or made that torch does not take: all of it, not the first only."""
    if isinstance(file, io.BytesIO):
        file.seek(0)
    with safe_globals([(Blank, name) for name in _BLANKED]):
        try:
            return get_unsafe_globals_in_checkpoint(file)
        except Exception:  # noqa: BLE001  not a zip file, or a damaged one
            return []


def damage(error: Exception) -> CheckpointDamagedError:
    """Say that something was not written whole, by the error that reading it led to."""
    # The first sentence only: in its next ones, torch recommends to load without safety.
    why = re.split(r"\.\s|\n", str(error).strip())[0].rstrip(".") or "it ends too early"
    msg = f"it is damaged, cut short or no checkpoint ({type(error).__name__}: {why})."
    return CheckpointDamagedError(msg)
