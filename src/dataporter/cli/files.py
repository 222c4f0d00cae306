"""Files that a command writes: whole or not at all, in a folder that is checked beforehand."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dataporter.errors import OptionError


def check_folder(folder: Path) -> None:
    """Raise at once, not after minutes, for a folder that is not there and cannot be made."""
    whole = folder.absolute()
    there = next(path for path in (whole, *whole.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        msg = f"{folder} cannot be written to: {there} is no folder that can be. Name another one."
        raise OptionError(msg)


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a file under another name, and give it its own once it is there.

    Its folder is made if there is none.
    """
    try:
        _write(path, contents.encode() if isinstance(contents, str) else contents)
    except OSError as error:  # a full disk, for one
        msg = f"{path} cannot be written: {error.strerror}. Name a file elsewhere."
        raise OptionError(msg) from error


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
