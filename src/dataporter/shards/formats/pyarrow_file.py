"""A file of a dataset as pyarrow's readers take it."""

from __future__ import annotations

import os

import pyarrow as pa

from dataporter.shards.shard_file import ShardFile


def pyarrow_file(file: ShardFile) -> pa.PythonFile:
    """Return a file of pyarrow over one of a dataset."""
    return pa.PythonFile(_Source(file), "r")


class _Source:
    """The methods of a Python file that pyarrow calls."""

    closed = False

    def __init__(self, file: ShardFile) -> None:
        self._file = file
        self._position = 0

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}
        self._position = starts[whence] + offset
        return self._position

    def read(self, size: int) -> bytes:
        return bytes(self.read_buffer(size))

    def read_buffer(self, size: int) -> memoryview:
        """Read without a copy: pyarrow prefers this method to `read`."""
        found = self._file.read(self._position, size)
        self._position += len(found)
        return found

    def close(self) -> None:
        """Do nothing, since the file is the caller's."""
