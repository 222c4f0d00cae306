"""Files that are kept: the user's folder, locks, files that are whole or absent, and records.

A result is written under a temporary name and renamed. While it is made, its parts are records in a
file beside it: one process makes it, the others wait, and where one is killed the next goes on.

`filelock` was measured: it takes 57 µs a lock where `flock` takes 5, looks every 50 ms whether the
lock is free, so that the next process begins 20 ms later instead of 0.04, and leaves a file of its
own. `platformdirs` gives the same folders, and would be one more requirement for eight lines.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_RECORD = struct.Struct("<II")  # bytes, CRC
_ABANDONED = 86_400  # seconds after which an unlocked temporary file has no writer

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
            if not is_locked or is_at(descriptor, path):
                return descriptor, is_locked
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


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a new file, which takes the place of `path` when it is on the disk, or never."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the name without contents
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class Records:
    """Records for a result that is being made, in a file beside it, which is locked meanwhile.

    Each is its size, its CRC and itself: what a kill cut short is known, and left out. On file
    systems without locks several processes may append; each of them then makes the whole result.
    """

    def __init__(self, result: Path, awaited: str) -> None:
        result.parent.mkdir(parents=True, exist_ok=True)
        self.result = result
        self.path = _records_of(result)
        self._descriptor, self._is_locked = open_and_lock(self.path, awaited)

    def read(self) -> list[memoryview]:
        """Return the records of before."""
        # By the descriptor: without locks, another process may have removed the file. And not
        # mapped: it may also cut it short.
        with open(os.dup(self._descriptor), "rb") as file:  # noqa: PTH123  a descriptor has no path
            file.seek(0)
            data = file.read()
        found = list(whole_records(data))
        if self._is_locked:
            os.ftruncate(self._descriptor, sum(_RECORD.size + len(record) for record in found))
        return found

    def add(self, record: bytes) -> None:
        """Keep a record."""
        left = memoryview(_RECORD.pack(len(record), zlib.crc32(record)) + record)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def clear(self) -> None:
        """Forget all records."""
        os.ftruncate(self._descriptor, 0)

    def finish(self) -> None:
        """Remove the records, once the result is written, and what killed writers have left.

        The records go last: where there are none, nothing else is left either.
        """
        _remove_temporaries(self.result, all_of_them=self._is_locked)
        with contextlib.suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        """Give the lock back. The file stays unless it has no records."""
        with contextlib.suppress(OSError):
            is_empty = self._is_locked and os.fstat(self._descriptor).st_size == 0
            if is_empty and is_at(self._descriptor, self.path):
                self.path.unlink()
        os.close(self._descriptor)


def whole_records(data: bytes) -> Iterator[memoryview]:
    """Yield records up to the first one that is cut short or damaged: the rest is not known."""
    left = memoryview(data)
    while len(left) >= _RECORD.size:
        size, crc = _RECORD.unpack_from(left)
        record = left[_RECORD.size : _RECORD.size + size]
        if len(record) != size or zlib.crc32(record) != crc:
            return
        yield record
        left = left[_RECORD.size + size :]


def remove_leftovers(result: Path) -> None:
    """Remove the records of a process that was killed when its result was written."""
    path = _records_of(result)
    if path.exists():
        with contextlib.suppress(OSError):  # locked, on a read-only file system, already removed
            remove_unless_locked(path, before=lambda: _remove_temporaries(result))


def _records_of(result: Path) -> Path:
    return result.with_suffix(".part")


def _remove_temporaries(result: Path, *, all_of_them: bool = True) -> None:
    for path in result.parent.glob(f"{result.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if all_of_them or time.time() - path.stat().st_mtime > _ABANDONED:
                path.unlink()


def remove_unless_locked(path: Path, before: Callable[[], None] = lambda: None) -> None:
    """Remove a file that no process has locked, and do something before that. Raise if one has."""
    if fcntl is None:
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(descriptor, path):
            before()
            path.unlink()
    finally:
        os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Return True if an open file has this path: nobody has removed or replaced it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


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
