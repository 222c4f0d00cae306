"""The cache: a folder of decoded blocks, shared by all processes of this machine.

    00000042.block    a decoded block: whole, since it was renamed when it was complete
    00000043.tmp      a block that is being decoded; its writer holds a lock on it
    evicted/          blocks that were evicted, until no reader has them mapped
    sizes             the table: see `cached_blocks`

An entry of the table is the size of a block's file, 0 if there is none, and below 0 the bytes that
are reserved for a block that is being decoded. So the sum of its amounts is what the cache takes
up, whoever writes to it. The table is changed under a lock on it, and each block is decoded under
a lock on its temporary file. The system drops both locks when a process dies. A kill leaves a
temporary file or an entry without its file; `remove_leftovers` finds them.

A map outlives its file, so a disk stays full until readers let go of what was evicted. The table
counts evictions: a reader that sees another count closes blocks that are no longer there. Writers
wait a moment for that. For readers that are idle they make up by blocks that nobody has mapped.

Here is no order and no schedule: callers say how far away the next use of each block is.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ShardCacheError, ShardFormatError
from dataporter.shards.cached_blocks import ENTRY, CachedBlocks, checksum_of
from dataporter.shards.places import NO_LOCKS
from dataporter.system.files import is_at, is_in_use

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where `Porter` refuses to start
    fcntl = None  # type: ignore[assignment]

NEVER = np.iinfo(np.int64).max  # distance to the next use of a block that is not used again
FULL = (errno.ENOSPC, errno.EDQUOT)

_UNUSABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),  # no folder to write
)
_TEMPORARY = re.compile(r"(\d{8,})\.tmp")


class NoRoomError(Exception):
    """A block does not fit, unless blocks are evicted that are used before it."""

    def __init__(self, missing: int, reserved: int) -> None:
        super().__init__()
        self.missing = missing  # bytes
        self.reserved = reserved  # bytes of blocks that are being decoded, and may be evicted then


class BlockCache(CachedBlocks):
    """The cache as its writers see it: at most `budget` bytes of decoded blocks.

    Threads may share it.
    """

    def __init__(self, folder: Path, blocks: int, budget: int | None) -> None:
        super().__init__(folder, blocks, since=time.time_ns())
        self._mutex = threading.Lock()
        self._writing: set[int] = set()
        self.evicted = 0
        self._leaving = folder / "evicted"
        with _named_errors(folder):
            self._tables.append(self._open_table())
            self.remove_leftovers()
            self.budget = self._half_of_the_disk() if budget is None else budget

    def _half_of_the_disk(self) -> int:
        """Return half of the bytes that are free or are decoded blocks of this dataset."""
        status = os.statvfs(self.folder)
        return (status.f_bavail * status.f_frsize + int(np.abs(self.sizes()).sum())) // 2

    def _open_table(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        table = os.open(self.folder / "sizes", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        size = (3 * self._blocks + 1) * ENTRY
        if os.fstat(table).st_size < size:
            _allocate(table, size)
        return table

    # The table

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing the table."""
        with self._mutex:
            if os.fstat(self._tables[-1]).st_nlink == 0:  # somebody has cleared the cache
                self._tables.append(self._open_table())
            _lock(table := self._tables[-1], fcntl.LOCK_EX)
            try:
                yield
            finally:
                _lock(table, fcntl.LOCK_UN)

    def sizes(self) -> NDArray[np.int64]:
        """Read the table; shape (blocks,)."""
        table = os.pread(self._tables[-1], self._blocks * ENTRY, 0)
        return np.frombuffer(table, dtype="<i8").astype(np.int64)

    # Blocks that come

    def add(
        self,
        block: int,
        write: Callable[[Path], None],
        reserve: Callable[[], None],
        *,
        wait: bool,
        grow: Callable[[int], None] | None = None,
    ) -> int:
        """Decode a block by `write(path)`, unless it is there, and return its size.

        It returns 0 if the block was there, or if another process is decoding it and `wait` is
        false. `reserve` is called first, under the lock of this block; `grow` with its size, if
        that is more than was reserved.
        """
        with self._temporary(block, wait=wait) as path:
            if path is None:
                return 0
            try:
                self._writing.add(block)
                reserve()
                with _named_errors(self.folder, (errno.EFBIG,)):  # others may be of the source
                    write(path)
                size = path.stat().st_size
                if grow is not None and size > -self._recorded(block):
                    grow(size)
                return self._publish(block, path, size, checksum_of(path))
            except BaseException:
                with self._locked():  # nobody else can reserve before the file is gone
                    self._record(block, 0)
                    path.unlink(missing_ok=True)
                raise
            finally:
                self._writing.discard(block)

    @contextmanager
    def _temporary(self, block: int, *, wait: bool) -> Iterator[Path | None]:
        """Lock the temporary file of a block; None if there is nothing to write."""
        path = self.folder / f"{block:08}.tmp"
        while not self.holds(block):
            with _named_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)  # if somebody has cleared the cache
                with self._mutex:  # or this process is at its end
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                try:
                    _lock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    break
                if not is_at(descriptor, path):  # renamed or removed before it was locked
                    continue
                if self.holds(block):  # decoded by another before this file was made
                    path.unlink()
                    break
                os.ftruncate(descriptor, 0)  # the part that a killed writer has left
                yield path
                return
            finally:
                os.close(descriptor)
        yield None

    def _publish(self, block: int, path: Path, size: int, checksum: int) -> int:
        if size == 0:
            msg = f"Block {block} decodes into an empty file."
            raise ShardFormatError(msg)
        with self._locked():
            self._record(block, size)
            self._record(self._checks(block), checksum)
            self._record(self._checks(block) + 1, time.time_ns())
            path.rename(self.path(block))
        return size

    def reserve(self, block: int, size: int, distances: NDArray[np.int64], at: int) -> None:
        """Reserve bytes for a block that is used at distance `at`; evict what is used later.

        Before it is written, readers should have let go of these: see `excess`.
        """
        with self._locked():
            sizes = self.sizes()
            sizes[block] = 0
            if int(np.abs(sizes).sum()) + size > self.budget:
                self._forget_missing(sizes)
            short = int(np.abs(sizes).sum()) + size - self.budget
            try:
                victims = _victims(sizes, distances, short, at)
            except NoRoomError:
                self._record(block, 0)
                raise
            for victim in victims:
                self._evict(int(victim))
            self._record(block, -size)

    def _evict(self, block: int) -> None:
        path, count = self.path(block), self.evictions() + 1
        with suppress(FileNotFoundError):
            if is_in_use(path):
                self._leaving.mkdir(exist_ok=True)
                path.rename(self._leaving / f"{block:08}-{count}")
            else:
                path.unlink()
        self._record(block, 0)
        self._record(self._blocks, count)
        self.evicted += 1

    def excess(self) -> int:
        """Return the bytes above the budget, with evicted blocks that readers have mapped."""
        with self._locked():
            mapped = self._remove_unmapped()[1]
            return mapped and int(np.abs(self.sizes()).sum()) + mapped - self.budget

    def make_up(self, distances: NDArray[np.int64], at: int) -> bool:
        """Evict blocks that no reader has mapped, used later than `at`, for evicted ones.

        Return False if they do not suffice.
        """
        with self._locked():
            mapped, sizes = self._remove_unmapped()[1], self.sizes()
            surplus = int(np.abs(sizes).sum()) + mapped - self.budget
            for block in _farthest(sizes, distances, at).tolist():
                if surplus <= 0:
                    break
                with suppress(FileNotFoundError):
                    if not is_in_use(self.path(block)):
                        self._evict(block)
                        surplus -= int(sizes[block])
            return surplus <= 0

    def remove_evicted(self) -> tuple[int, int]:
        """Remove evicted blocks that nobody has mapped; bytes of these and of the others."""
        with self._locked():
            return self._remove_unmapped()

    def _remove_unmapped(self) -> tuple[int, int]:
        removed = mapped = 0
        with suppress(FileNotFoundError), os.scandir(self._leaving) as entries:
            for entry in entries:
                size = entry.stat().st_size
                if is_in_use(Path(entry.path)):
                    mapped += size
                else:
                    Path(entry.path).unlink()
                    removed += size
        return removed, mapped

    def drop(self, block: int) -> None:
        """Remove a block that turned out to be damaged."""
        with self._locked():
            if self.sizes()[block] > 0:
                self._evict(block)

    def trim(self, distances: NDArray[np.int64]) -> None:
        """Evict what a larger budget has let in, farthest next use first, unless it is in use."""
        with self._locked():
            sizes = self.sizes()
            if int(np.abs(sizes).sum()) > self.budget:
                self._forget_missing(sizes)
            surplus = int(np.abs(sizes).sum()) - self.budget
            for block in _farthest(sizes, distances, 0).tolist():
                if surplus <= 0:
                    break
                self._evict(block)
                surplus -= int(sizes[block])

    def shrink(self) -> bool:
        """Lower the budget to the blocks that lie here now; return False if there are none."""
        with self._locked():
            sizes = self.sizes()
            mapped = self._remove_unmapped()[1]
        held = int(sizes[sizes > 0].sum())
        held += mapped if held else 0
        self.budget = min(self.budget, held) if held else self.budget
        return held > 0

    # What a kill has left

    def remove_leftovers(self) -> None:
        """Remove temporary files whose writers are dead, and entries without a file."""
        with os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries]
        self._remove_unwritten(names)
        with self._locked():
            self._forget_missing(self.sizes())
            self._remove_unmapped()

    def _remove_unwritten(self, names: Iterable[str]) -> None:
        for name in names:
            if _TEMPORARY.fullmatch(name):
                with suppress(OSError):  # locked by its writer, or removed by another
                    _remove_if_nobody_writes(self.folder / name)

    def _forget_missing(self, sizes: NDArray[np.int64]) -> None:
        """Set entries to 0 that have neither a block nor a writer; `sizes` is changed too."""
        with os.scandir(self.folder) as entries:
            names = {entry.name for entry in entries}
        for block in np.flatnonzero(sizes).tolist():
            name = f"{block:08}." + ("block" if sizes[block] > 0 else "tmp")
            if name not in names:
                sizes[block] = 0
                self._record(block, 0)

    def abandon(self) -> None:
        """Give up what this process is writing: it ends next, and holds the lock until then."""
        self._mutex.acquire()
        _lock(self._tables[-1], fcntl.LOCK_EX)
        for block in list(self._writing):
            (self.folder / f"{block:08}.tmp").unlink(missing_ok=True)
            if self._recorded(block) < 0:
                self._record(block, 0)
        self._remove_unmapped()
        # A thread may have opened a file, and not begun to write.
        self._remove_unwritten([path.name for path in self.folder.iterdir()])


def _victims(
    sizes: NDArray[np.int64], distances: NDArray[np.int64], short: int, at: int
) -> NDArray[np.int64]:
    """Choose blocks to evict, farthest next use first; shape (victims,)."""
    if short <= 0:
        return np.empty(0, np.int64)
    candidates = _farthest(sizes, distances, at)
    freed = np.cumsum(sizes[candidates])
    count = int(np.searchsorted(freed, short)) + 1
    if count > len(freed):
        raise NoRoomError(
            missing=short - (int(freed[-1]) if len(freed) else 0),
            reserved=-int(sizes[sizes < 0].sum()),
        )
    return candidates[:count]


def _farthest(sizes: NDArray[np.int64], distances: NDArray[np.int64], at: int) -> NDArray[np.int64]:
    """Return the blocks that are used later than at a distance, the last ones first."""
    candidates = np.flatnonzero((sizes > 0) & (distances > at))
    return candidates[np.argsort(-distances[candidates], kind="stable")]


def _allocate(descriptor: int, size: int) -> None:
    """Lengthen a file with zeros, so that a full disk does not matter to it later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _lock(descriptor: int, how: int) -> None:
    """Lock a file. Where there are no locks, the folder is this process's own: `places`."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _remove_if_nobody_writes(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(descriptor, path):
            path.unlink()
    finally:
        os.close(descriptor)


@contextmanager
def _named_errors(folder: Path, which: tuple[int, ...] = _UNUSABLE) -> Iterator[None]:
    """Say which folder cannot be written, except that it is full: that has a remedy here."""
    try:
        yield
    except OSError as error:
        if error.errno in which and not isinstance(error, ShardCacheError):
            raise _unwritable(folder, error) from error
        raise


def _unwritable(folder: Path, error: OSError) -> ShardCacheError:
    """Name the folder that cannot be written, and the remedy."""
    msg = (
        f"Decoded blocks cannot be written to {folder}: {error.strerror or error}. "
        "Pass cache= a folder on a local disk that this process may write to."
    )
    return ShardCacheError(error.errno, msg)
