"""A file that is elsewhere, for tests of formats: it counts what it is asked for.

As in a storage, ranges that were expected are held until as many bytes of them were read.
"""

from __future__ import annotations

import io
import posixpath
from pathlib import Path
from typing import BinaryIO

from dataporter.shards.shard_file import ShardFile

WINDOW = 1 << 20  # bytes that an open file fetches at once


class CountedFile(ShardFile):
    """A file of a folder that is held in memory."""

    def __init__(self, folder: dict[str, bytes], path: str) -> None:
        self.name = f"s3://bucket/{path}"
        self.size = len(folder[path])
        self.version = "1"
        self.trips = 0  # times that a reader had to wait
        self.read_ranges: list[tuple[int, int]] = []  # each first byte and end
        self._folder, self._path = folder, path
        self._held: list[list[int]] = []  # each first byte, end, and bytes unread

    @classmethod
    def of(cls, path: Path) -> CountedFile:
        """Return a file with those of its folder and the one above beside it."""
        above = path.parent.parent
        files = [*above.glob("*"), *path.parent.glob("*")]
        folder = {
            str(file.relative_to(above)): file.read_bytes() for file in files if file.is_file()
        }
        return cls(folder, str(path.relative_to(above)))

    def read(self, offset: int, size: int) -> memoryview:
        begin, end = offset, min(offset + size, self.size)
        assert begin >= 0
        if begin >= end:
            return memoryview(b"")
        self.read_ranges.append((begin, end))
        for held in self._held:
            if held[0] <= begin and end <= held[1]:
                held[2] -= end - begin
                if held[2] <= 0:
                    self._held.remove(held)
                break
        else:
            self.trips += 1
        return memoryview(self._folder[self._path])[begin:end]

    def expect(self, ranges) -> None:
        assert all(0 <= begin < end <= self.size for begin, end in ranges)
        self.trips += bool(ranges)
        self.hold(ranges)

    def hold(self, ranges) -> None:
        """Hold ranges that need not be fetched."""
        for begin, end in sorted(ranges):
            if self._held and begin <= self._held[-1][1]:
                begin, end = self._held[-1][0], max(end, self._held.pop()[1])
            self._held.append([begin, end, end - begin])

    def beside(self, name: str) -> CountedFile | None:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self._path), name))
        return CountedFile(self._folder, path) if path in self._folder else None

    def open(self) -> BinaryIO:
        return io.BufferedReader(_Windows(self))

    def copy(self, offset: int, size: int, to: Path) -> None:
        to.write_bytes(self.read(offset, size))


class _Windows(io.RawIOBase):
    def __init__(self, file: CountedFile) -> None:
        self._file, self._position, self._window = file, 0, (-1, memoryview(b""))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._file.size)[whence]
        return self._position

    def readinto(self, into) -> int:
        number, skipped = divmod(self._position, WINDOW)
        if self._window[0] != number:
            self._window = (number, self._file.read(number * WINDOW, WINDOW))
        part = self._window[1][skipped : skipped + len(into)]
        into[: len(part)] = part
        self._position += len(part)
        return len(part)
