"""The error of a truncated, damaged or foreign file, which says what the file seems to be."""

from __future__ import annotations

from dataporter.errors import ShardFormatError
from dataporter.shards.shard_file import ShardFile

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


def damaged(file: ShardFile, expected: str, reason: str) -> ShardFormatError:
    """Return the error of a file that is not as expected, with what was found instead.

    >>> from pathlib import Path
    >>> from dataporter.shards.shard_file import LocalFile
    >>> print(damaged(LocalFile(Path(__file__)), "an Arrow file", "it has no end"))
    This is not an Arrow file, or it is cut off: ...damage.py. Found a file that begins with ...
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
