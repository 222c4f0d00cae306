"""Compressed text in frames: gzip members and zstd frames, one after the other.

A file of several frames can be decompressed from the beginning of each, so that it has several
blocks. bgzip, pzstd, and appending to a file write such files.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from dataporter.shards.formats.compression import require_zstandard

STEP = 256 << 10  # bytes decompressed at once
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x2a\x4d\x18"  # after one byte from 0x50 to 0x5f: a frame without text, of pzstd
WINDOW = 1 << 31  # bytes, so that files of `zstd --long=31` can be read


class BrokenFrameError(Exception):
    """The compressed data is damaged, or ends before its last frame does."""


class Piece(NamedTuple):
    """Some decompressed bytes, and the end of their frame in the file if it ends with them."""

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
    """Decompress parts of a file, the first of which begins, and the last ends, with a frame.

    `position` is that of the first byte.
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
