"""The cache of decoded blocks as readers see it: their files, and the table.

The table is the file `sizes`, of 8 bytes an entry. For n blocks it has

    n entries    the sizes of blocks, 0 for those that are not there: see `cache`
    1 entry      the number of evictions so far
    2n entries   of each block, its checksum and the time of the last check

A table of an older version ends after the sizes. A block is checked when it is written, and when a
later run maps it first: flipped bits on the disk would be samples that nobody has stored.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dataporter.system.memory import map_file

ENTRY = 8  # bytes


class DamagedBlockError(Exception):
    """A block has other bytes than were written."""


def checksum_of(path: Path) -> int:
    """Return the checksum of a file: 2.5 ms for 16 MB, which take 11 to 50 ms to decode."""
    with path.open("rb") as file:
        return zlib.crc32(map_file(file.fileno()))


class CachedBlocks:
    """The cache as readers see it. Blocks written before `since` are checked when they are mapped.

    `since` is a time in nanoseconds: that of the beginning of a run. Nothing is written but the
    times of checks.
    """

    def __init__(self, folder: Path, blocks: int, since: int = 0) -> None:
        self.folder = folder
        self._blocks = blocks
        self._since = since
        # Descriptors of the table: the last one is used. The others are of tables that somebody
        # has removed with the whole cache; another thread may be reading them.
        self._tables: list[int] = []
        self._mapped: dict[int, int] = {}  # by block, the number of the file that was mapped last

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # no global at the end
        for table in self._tables:
            close(table)

    def path(self, block: int) -> Path:
        """Return the place of a decoded block, whether or not it is there."""
        return self.folder / f"{block:08}.block"

    def holds(self, block: int) -> bool:
        """Return True if a block is there with the size that was recorded."""
        try:
            size = os.stat(f"{self.folder}/{block:08}.block").st_size  # noqa: PTH116  it is faster
        except OSError:
            return False
        return size == self._recorded(block)

    def map(self, block: int) -> memoryview | None:
        """Map a block that was there a moment ago; None if it has been evicted since.

        A block that an earlier run has left is checked, by one of all processes.
        """
        try:
            descriptor = os.open(self.path(block), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            self._mapped[block] = os.fstat(descriptor).st_ino
            mapped = map_file(descriptor)
        finally:
            os.close(descriptor)
        checksum, at = self._recorded(self._checks(block)), self._recorded(self._checks(block) + 1)
        if 0 < at < self._since:
            if zlib.crc32(mapped) != checksum:
                raise DamagedBlockError
            with suppress(OSError):  # a table that cannot be written to
                self._record(self._checks(block) + 1, time.time_ns())
        return mapped

    def evictions(self) -> int:
        """Count evictions, of all processes. Another number says: look which blocks are gone."""
        return self._recorded(self._blocks)

    def is_gone(self, block: int) -> bool:
        """Return True if a block was mapped here, and has been evicted or replaced since."""
        number = self._mapped.get(block)
        if number is None:
            return False
        try:
            return os.stat(f"{self.folder}/{block:08}.block").st_ino != number  # noqa: PTH116  likewise
        except OSError:
            return True

    def _checks(self, block: int) -> int:
        """Return the entry with the checksum of a block. The next one is when it was checked."""
        return self._blocks + 1 + 2 * block

    def _record(self, entry: int, value: int) -> None:
        os.pwrite(self._tables[-1], value.to_bytes(ENTRY, "little", signed=True), entry * ENTRY)

    def _recorded(self, number: int) -> int:
        if not self._tables or os.fstat(self._tables[-1]).st_nlink == 0:
            try:
                self._tables.append(self._open_table())
            except OSError:
                return 0
        entry = os.pread(self._tables[-1], ENTRY, number * ENTRY)
        return int.from_bytes(entry, "little", signed=True)

    def _open_table(self) -> int:
        path = self.folder / "sizes"
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
