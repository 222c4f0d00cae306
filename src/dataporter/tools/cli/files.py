"""Files that a command writes: complete or not at all, in a folder that is checked first."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from dataporter.errors import OptionError


def check_folder(folder: Path) -> None:
    """Raise before minutes of work if a folder cannot be made or written to.

    The folder is made, written to and removed again, since permissions alone do not tell.
    """
    whole = folder.absolute()
    made = [path for path in (whole, *whole.parents) if not os.path.lexists(path)]
    try:
        whole.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=whole, prefix=".dataporter."):
            pass
    except OSError as error:
        msg = f"{folder} cannot be written to: {error.strerror}. Name another folder."
        raise OptionError(msg) from error
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def check_file(path: Path) -> None:
    """Raise before minutes of work if a file cannot be written. Its folder must exist."""
    # A device, for example, must not be replaced by a file.
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        msg = f"{path} cannot be written: name a file in a folder that exists and can be written."
        raise OptionError(msg)
    check_folder(path.parent)


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a file under a temporary name, then rename it. Make its folder if needed."""
    try:
        _write(path, contents.encode() if isinstance(contents, str) else contents)
    except OSError as error:  # a full disk, for example
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
