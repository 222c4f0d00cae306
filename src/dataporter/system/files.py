"""Files: the user's cache folder, locks that end with their process, files that others map."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)


def user_folder() -> Path | None:
    """Return the user's cache folder; None if there is no home folder."""
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


def open_and_lock(path: Path, awaited: str) -> tuple[int, bool]:
    """Open a file to append to it, once no other process has locked it.

    Return its descriptor, and False if this system or file system has no locks. `awaited` says in
    the log what another process is doing. Who has the lock may remove the file.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            is_locked = _lock(descriptor, awaited)
            if not is_locked or os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor, is_locked
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another process has finished, and removed the file


def _lock(descriptor: int, awaited: str) -> bool:
    """Wait for the lock. Return False if there are none."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("waiting for %s", awaited)
    except OSError:
        return False
    else:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return True


def is_in_use(path: Path) -> bool:
    """Return True if a process has a file open or mapped, as far as the system tells.

    Linux grants a lease on a file only if nobody else has it open or mapped. Other systems have
    none, and overlay file systems see no maps: there the answer is False.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    else:
        return False
    finally:
        os.close(descriptor)  # the lease ends too
