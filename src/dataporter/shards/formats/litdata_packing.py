"""LitData's three ways to compress a chunk, each undone into the plain chunk.

"chunk" is one zstd frame for the file. "batch" has a table of frames, each of many rows:

    "LDFZ01" 0 0 | version: u16 | flags: u16 | rows: u32 | rows of a frame: u32 | frames: u32
    offset of each row, and of the end: u32 | frames, each: first row: u32, rows: u32,
    offset: u64, size: u32, size when decompressed: u32 | the frames

"sample" has a frame for each row, between the offsets of a plain chunk.

A ValueError says what is wrong with a chunk, without the name of its file.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np

from dataporter.shards.formats.compression import decompress_zstd, require_zstandard
from dataporter.shards.formats.index_json import head_of, row_offsets
from dataporter.shards.formats.index_json import size_of_head as size_of_offsets
from dataporter.shards.shard_file import ShardFile

LEVELS = ("chunk", "batch", "sample")
_MAGIC = b"LDFZ01\0\0"
_PREFIX = struct.Struct("<8sHHIII")
_LONGEST_FRAME_HEAD = 18  # bytes
_LARGEST = 2**32  # bytes of a chunk, whose offsets have 32 bits
_FRAME = struct.Struct("<IIQII")


def size_of_head(level: str | None, rows: int) -> int:
    """Return the bytes at the beginning of a chunk that tell where its rows or frames lie."""
    if level == "batch":
        return _PREFIX.size + 4 * (rows + 1) + _FRAME.size * rows  # a frame has a row or more
    return 0 if level == "chunk" else size_of_offsets(rows)


def unpacked_size(file: ShardFile, head: memoryview, level: str, rows: int) -> int | None:
    """Return the size of the plain chunk, None if only the index knows it."""
    if level == "chunk":
        return None
    if level == "batch":
        sizes, _ = _frame_table(head, rows, file.size)
        return size_of_offsets(rows) + sum(sizes)
    frames = list(pairwise(_offsets(head, rows, file.size)))
    heads = [(begin, min(begin + _LONGEST_FRAME_HEAD, end)) for begin, end in frames]
    file.expect(heads)
    sizes = [_content_size(file.read(begin, end - begin)) for begin, end in heads]
    return size_of_offsets(rows) + sum(sizes)


def unpack(data: memoryview, level: str, rows: int, size: int) -> bytes:
    """Return the plain chunk."""
    if level == "chunk":
        return _decompress(data, size)
    if level == "batch":
        sizes, frames = _frame_table(data, rows, len(data))
        bodies = [_decompress(data[at : at + packed], plain) for at, packed, plain in frames]
        return head_of(sizes) + b"".join(bodies)
    parts = [
        _decompress(data[begin:end], _content_size(data[begin:end]))
        for begin, end in pairwise(_offsets(data, rows, len(data)))
    ]
    return head_of([len(part) for part in parts]) + b"".join(parts)


def _offsets(head: memoryview, rows: int, size: int) -> list[int]:
    offsets = row_offsets(head, rows, end=size)
    if offsets is None:
        msg = f"it does not begin with the offsets of {rows:,} rows"
        raise ValueError(msg)
    return offsets


def _frame_table(
    data: memoryview, rows: int, file_size: int
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the size of each row, and of each frame its offset, size and plain size.

    `data` begins with the table, and may end before the file does.
    """
    if len(data) < _PREFIX.size or data[: len(_MAGIC)] != _MAGIC:
        msg = "it does not begin with LDFZ01"
        raise ValueError(msg)
    _, version, _, found, _, number = _PREFIX.unpack_from(data)
    if (version, found) != (1, rows):
        msg = f"it has version {version} and {found:,} rows instead of version 1 and {rows:,} rows"
        raise ValueError(msg)
    table = _PREFIX.size + 4 * (rows + 1)
    if len(data) < table + number * _FRAME.size:
        msg = "its table of frames is cut off"
        raise ValueError(msg)
    offsets = np.frombuffer(data[_PREFIX.size : table], "<u4").astype(np.int64)
    sizes: list[int] = np.diff(offsets).tolist()
    frames = []
    counted = 0
    for i in range(number):
        first, count, at, packed, plain = _FRAME.unpack_from(data, table + i * _FRAME.size)
        expected = sum(sizes[first : first + count])
        if first != counted or plain != expected or at + packed > file_size:
            msg = f"frame {i:,} of its table is damaged or cut off"
            raise ValueError(msg)
        counted += count
        frames.append((at, packed, plain))
    if counted != rows or offsets[0] or min(sizes) < 0:
        msg = f"its table has frames for {counted:,} of {rows:,} rows"
        raise ValueError(msg)
    return sizes, frames


def _content_size(frame: memoryview) -> int:
    zstandard = require_zstandard()
    try:
        size = int(zstandard.get_frame_parameters(frame[:_LONGEST_FRAME_HEAD]).content_size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if size > _LARGEST:
        msg = f"a frame announces {size:,} bytes, or does not say how many it has"
        raise ValueError(msg)
    return size


def _decompress(frame: memoryview, size: int) -> bytes:
    plain = decompress_zstd(frame, size)
    if len(plain) != size:
        msg = f"a frame has {len(plain):,} bytes instead of {size:,}"
        raise ValueError(msg)
    return plain
