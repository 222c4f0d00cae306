"""Files that a command writes: whole or not at all, in a folder that is checked beforehand."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dataporter.errors import OptionError


def make_folder(folder: Path) -> None:
    """Make a folder if there is none; raise at once, not after minutes, if it will not do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"the folder {folder} cannot be made: {error.strerror}. Name another one."
        raise OptionError(msg) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        msg = f"nothing can be written to the folder {folder}. Name another one."
        raise OptionError(msg)


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a file under another name, and give it its own once it is there."""
    data = contents.encode() if isinstance(contents, str) else contents
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
