"""Evidence of a file's contents.

64 bits that differ when the contents of a block do, read at little cost; and the error of a
truncated, damaged or foreign file, which says what the file seems to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dataporter.errors import ShardChangedError, ShardFormatError
from dataporter.shards.shard_file import Block, ShardFile

PROBE = 4096  # bytes at each end of a block
# What a file of another kind begins with, and what it then is.
KINDS = (
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"FEA1", "a Feather file of version 1"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version https://git-lfs", "a pointer of Git LFS, whose data was not downloaded,"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
)
TAR = slice(257, 262)  # bytes of a tar header that are b"ustar"


def evidence(parts: Iterable[bytes | memoryview]) -> int:
    """Hash parts of a block into an unsigned 64-bit integer.

    >>> evidence([b"ab", b"c"]) == evidence([b"abc"])
    True
    """
    gathered = Evidence()
    for part in parts:
        gathered.add(part)
    return gathered.value()


class Evidence:
    """Evidence of contents that come part by part."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8, person=b"dataporter")

    def add(self, part: bytes | memoryview) -> None:
        self._digest.update(part)

    def value(self) -> int:
        """Return an unsigned 64-bit integer."""
        return int.from_bytes(self._digest.digest(), "little")


def ends(offset: int, size: int, head: int = PROBE) -> list[tuple[int, int]]:
    """Return the ranges, each first byte and end, of the head and the tail of a run of bytes.

    >>> ends(0, 10_000), ends(0, 5)
    ([(0, 4096), (5904, 10000)], [(0, 5)])
    """
    end = offset + size
    return (
        [(offset, end)] if size <= head + PROBE else [(offset, offset + head), (end - PROBE, end)]
    )


def read_ends(
    file: ShardFile, offset: int, size: int, head: int = PROBE
) -> tuple[memoryview, memoryview]:
    """Read the head and the tail, each byte once; both are the whole run if it is short."""
    found = [file.read(begin, end - begin) for begin, end in ends(offset, size, head)]
    return found[0], found[-1]


def evidence_of_ends(head: memoryview, tail: memoryview, size: int) -> int:
    """Hash the size, the head and the tail of a run of bytes."""
    return evidence([size.to_bytes(8, "little"), head[:PROBE], tail[-PROBE:]])


def require_whole(data: memoryview, block: Block) -> None:
    """Raise unless a file still has all bytes of a block."""
    end = block.offset + block.size
    if len(data) < end:
        msg = (
            f"The file became shorter since it was indexed: it has {len(data):,} bytes, but a "
            f"block ends at {end:,}. Restore the file, or build the index again."
        )
        raise ShardChangedError(msg)


def damaged(file: ShardFile, expected: str, reason: str) -> ShardFormatError:
    """Return the error of a file that is not what was expected. It says what was found.

    >>> from pathlib import Path
    >>> from dataporter.shards.shard_file import LocalFile
    >>> print(damaged(LocalFile(Path(__file__)), "an Arrow file", "it has no end"))
    This is not an Arrow file, or it is cut off: ...evidence.py. Found a file that begins with ...
    """
    return ShardFormatError(
        f"This is not {expected}, or it is cut off: {file.name}. Found {_found(file)}: "
        f"{reason.rstrip('.')}. Download or write it again, or remove it from the dataset."
    )


def _found(file: ShardFile) -> str:
    try:
        start = bytes(file.read(0, 512))
    except Exception:  # noqa: BLE001  the damage is the error to raise
        return "a file that cannot be read"
    return f"{_kind(start)} of {file.size:,} bytes" if start else "an empty file"


def _kind(start: bytes) -> str:
    for magic, kind in KINDS:
        if start.startswith(magic):
            return kind
    if start[TAR] == b"ustar":
        return "a tar archive"
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "an HTML or XML page, often the error of a failed download,"
    return f"a file that begins with {start[:16]!r}"
