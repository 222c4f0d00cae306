"""Offsets of rows at the head of a file, as MDS and LitData have them.

rows: u32 | offset of each row, and of the end of the last: u32 each
"""

from __future__ import annotations

import struct

import numpy as np

_U32 = struct.Struct("<I")


def size_of_head(rows: int) -> int:
    """Return the bytes before anything but offsets.

    >>> size_of_head(3)
    20
    """
    return _U32.size * (rows + 2)


def row_offsets(data: memoryview, rows: int, *, end: int | None = None) -> list[int] | None:
    """Return the offsets of all rows and of the end, None if they cannot be right.

    The last row ends with `data`, unless `end` is given: then `data` may be the head alone.
    """
    head = size_of_head(rows)
    if len(data) < head or _U32.unpack_from(data)[0] != rows:
        return None
    offsets = np.frombuffer(bytes(data[_U32.size : head]), "<u4").astype(np.int64)
    if offsets[-1] != (len(data) if end is None else end):
        return None
    if offsets[0] < head or (np.diff(offsets) < 0).any():
        return None
    numbers: list[int] = offsets.tolist()
    return numbers


def head_of(sizes: list[int]) -> bytes:
    """Return the head of a file whose rows have these sizes and follow at once.

    >>> row_offsets(memoryview(head_of([1, 2]) + b"abc"), 2)
    [16, 17, 19]
    """
    first = size_of_head(len(sizes))
    offsets = np.cumsum([first, *sizes]).astype("<u4")
    return _U32.pack(len(sizes)) + offsets.tobytes()
