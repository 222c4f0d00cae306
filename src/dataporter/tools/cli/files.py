"""Files that a command writes: whole or not at all, in a folder that is checked beforehand."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from dataporter.errors import OptionError


def check_folder(folder: Path) -> None:
    """Raise at once, not after minutes, for a folder that is not there and cannot be made.

    It is made, written to and removed again: what a system says of permissions is not all.
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
    """Likewise for a file, whose folder has to be there."""
    # What is there and no plain file, a device for one, must not be replaced by one.
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        msg = f"{path} cannot be written: name a file in a folder that exists and can be written."
        raise OptionError(msg)
    check_folder(path.parent)


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
