"""Decompression: of whole shards, and of text in frames.

Frames are gzip members and zstd frames, one after the other. A file of several frames can be
decompressed from the beginning of each, so that it has several blocks. bgzip, pzstd, and appending
to a file write such files.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from dataporter.errors import OptionError, ShardFormatError
from dataporter.shards import shards_extra

KNOWN = ("zstd", "gz", "bz2")  # of whole shards
STEP = 256 << 10  # bytes decompressed at once
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x2a\x4d\x18"  # after one byte from 0x50 to 0x5f: a frame without text, of pzstd
WINDOW = 1 << 31  # bytes, so that files of `zstd --long=31` can be read


def require_known(algorithm: str, name: str) -> None:
    """Raise unless this compression of shards is supported."""
    if algorithm not in KNOWN:
        msg = (
            f"{name} is compressed with {algorithm!r}, which cannot be read. Known are "
            f"{', '.join(KNOWN)}: decompress the files, or write them again with one of these."
        )
        raise OptionError(msg)


def decompress(data: bytes | memoryview, algorithm: str, name: str, size: int) -> bytes:
    """Decompress a shard into `size` bytes. Raise if it is damaged."""
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


class BrokenFrameError(Exception):
    """Compressed data that is damaged, or ends before its last frame does."""


class Piece(NamedTuple):
    """Decompressed bytes, and the end of their frame in the file if it ends with them."""

    text: bytes
    end: int | None


def compression_of(start: bytes) -> str | None:
    """Return the compression of a file by its first bytes."""
    if start.startswith(GZIP):
        return "gzip"
    is_skippable = start[1:4] == SKIPPABLE and start[0] >> 4 == 5  # noqa: PLR2004
    return "zstd" if start.startswith(ZSTD) or is_skippable else None


def pieces_of(
    parts: Iterable[bytes | memoryview], compression: str, position: int = 0
) -> Iterator[Piece]:
    """Decompress consecutive parts of a file, which together are whole frames.

    `position` is that of the first byte in the file.
    """
    source = iter(parts)
    begin = _decompressor(compression)
    pending: bytes | memoryview = b""
    while True:
        pending = pending or next(source, b"")
        if not pending:
            return
        # Zeros may follow the last member of a gzip file.
        if compression == "gzip" and not bytes(pending).strip(b"\0"):
            position += len(pending)
            pending = b""
            continue
        frame = begin()
        while not frame.eof:
            if not pending:
                pending = next(source, b"")
                if not pending:
                    msg = "the compressed data ends in the middle of a frame"
                    raise BrokenFrameError(msg)
            try:
                text = frame.decompress(pending)
            except Exception as error:
                if not isinstance(error, zlib.error) and type(error).__name__ != "ZstdError":
                    raise
                msg = f"the compressed data is damaged near byte {position}: {error}"
                raise BrokenFrameError(msg) from error
            rest = frame.unused_data if frame.eof else b""
            position += len(pending) - len(rest)
            pending = rest
            yield Piece(text, position if frame.eof else None)


def _decompressor(compression: str) -> Callable[[], Any]:
    """Return a function that begins to decompress a frame."""
    if compression == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    return require_zstandard().ZstdDecompressor(max_window_size=WINDOW).decompressobj  # type: ignore[no-any-return]
