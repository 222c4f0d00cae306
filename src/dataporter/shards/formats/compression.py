"""Decompression of whole shards and of zstd frames."""

from __future__ import annotations

import bz2
import gzip
import zlib
from typing import Any

from dataporter.errors import OptionError, ShardFormatError
from dataporter.shards.extra import shards_extra

KNOWN = ("zstd", "gz", "bz2")


def require_known(algorithm: str, name: str) -> None:
    """Raise unless shards with this compression can be read."""
    if algorithm not in KNOWN:
        msg = (
            f"{name} is compressed with {algorithm!r}, which cannot be read. Known are "
            f"{', '.join(KNOWN)}: decompress the files, or write them again with one of these."
        )
        raise OptionError(msg)


def decompress(data: bytes | memoryview, algorithm: str, name: str, size: int) -> bytes:
    """Decompress a shard whose size is known, or say what is wrong with it."""
    try:
        if algorithm == "zstd":
            raw = decompress_zstd(data, size)
        elif algorithm == "gz":
            raw = gzip.decompress(data)
        else:
            raw = bz2.decompress(data)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        msg = f"{name} cannot be decompressed ({algorithm}): {error}. Copy the file again."
        raise ShardFormatError(msg) from error
    if len(raw) != size:
        msg = (
            f"{name} has {len(raw):,} bytes when decompressed, but its index announces {size:,}. "
            f"Copy the file again, with its index."
        )
        raise ShardFormatError(msg)
    return raw


def decompress_zstd(data: bytes | memoryview, size: int) -> bytes:
    """Decompress a frame whose size is known. A ValueError says what is wrong with it."""
    zstandard = require_zstandard()
    try:
        # A frame need not say how long its contents are.
        decompressor = zstandard.ZstdDecompressor()
        plain: bytes = decompressor.decompress(data, max_output_size=max(size, 1))
    except (zstandard.ZstdError, MemoryError) as error:
        raise ValueError(str(error)) from error
    return plain


def require_zstandard() -> Any:
    """Import zstandard, or say how to install it."""
    with shards_extra():
        import zstandard  # noqa: PLC0415  an extra

    return zstandard
