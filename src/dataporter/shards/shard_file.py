"""A file of a dataset, wherever it lies: what a format reads, and the blocks that it finds there.

Formats ask for ranges of bytes. A local file is mapped, so a range is a view of it. A file in a
storage is fetched range by range; `expect` says which ranges come next, so that they are fetched
together instead of one after the other.

Blocks are runs of rows that are read and decoded as one: a Parquet row group, an MDS shard, a slice
of a tar or JSONL file.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from dataporter.system.memory import map_file


class Block(NamedTuple):
    """A run of rows in a file."""

    offset: int  # of the first byte in its file
    size: int  # bytes in its file
    rows: int
    decoded: int  # bytes as workers map it: `size`, unless it has to be decoded first
    checksum: int = 0  # 64 bits of evidence of its contents


class Scanned(NamedTuple):
    """A file as its format sees it."""

    blocks: tuple[Block, ...]
    schema: dict[str, Any]  # JSON; equal in all files of a dataset, else the schema drifts
    warnings: tuple[str, ...] = ()  # about this file, each a sentence with a remedy


class ShardFile(ABC):
    """A file that formats read."""

    name: str  # for messages: a path, or a URL without secrets
    size: int
    version: str  # another one if the file was written again

    @abstractmethod
    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes of the file; fewer than `size` where the file ends."""

    @abstractmethod
    def beside(self, name: str) -> ShardFile | None:
        """Return the file at a path relative to this one's folder; None if there is none."""

    @abstractmethod
    def open(self) -> BinaryIO:
        """Open the file for reading from its beginning to its end. It can seek."""

    @abstractmethod
    def copy(self, offset: int, size: int, to: Path) -> None:
        """Write bytes of the file to another file, which is made or replaced."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: B027  no need if local
        """Say which ranges, each first byte and end, are read next."""


class LocalFile(ShardFile):
    """A file of this machine, mapped when it is first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        status = path.stat()
        self.size = status.st_size
        self.version = str(status.st_mtime_ns)

    @cached_property
    def _data(self) -> memoryview:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return map_file(descriptor)
        finally:
            os.close(descriptor)

    def read(self, offset: int, size: int) -> memoryview:
        return self._data[offset : offset + size]

    def beside(self, name: str) -> ShardFile | None:
        try:
            return LocalFile(Path(os.path.normpath(self.path.parent / name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self) -> BinaryIO:
        return self.path.open("rb")

    def copy(self, offset: int, size: int, to: Path) -> None:
        to.write_bytes(self.read(offset, size))
