"""Headers of a tar file: the members and where their bodies lie, without reading the bodies.

It reads what `tarfile` reads: ustar, GNU long names and pax. Members that are no regular files
are skipped. Two kinds are errors, since a walk that begins in the middle of the file would read
them wrongly: sparse members, and global pax headers that rename or resize members.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from dataporter.errors import ShardFormatError

Read: TypeAlias = Callable[[int, int], bytes]  # an offset and a size to bytes of a file
UNIT = 512  # bytes of a header; bodies are padded to a multiple of it
_ZEROS = bytes(UNIT)
_SIGN = 0x80  # the highest bit of a byte
_REGULAR = b"0\x007"
_WITHOUT_BODY = b"123456"  # links, devices, folders, pipes
_ABOUT_THE_NEXT = b"LKxXg"  # GNU long names and links, pax headers


class Member(NamedTuple):
    """A regular file in a tar file."""

    start: int  # of its first header; a long name has a header of its own
    name: str
    body: int  # offset of its first byte
    size: int
    crc: int  # of its headers


class Members:
    """The regular files between two offsets. After they were iterated, `end` is known.

    Headers are read one after the other, in the order in which they lie in a file of `size` bytes.
    A ShardFormatError lacks the name of the file, which the caller knows.
    """

    def __init__(self, read: Read, size: int, begin: int, end: int) -> None:
        self._read = read
        self._size = size
        self._limit = end
        self.end = begin  # of the members seen so far, skipped ones too

    def __iter__(self) -> Iterator[Member]:
        while self.end < self._limit:
            start = at = self.end
            names = _Names()
            while (header := self._header(at))[156] in _ABOUT_THE_NEXT:
                size = _number(header[124:136], at)
                names.read(header, self._body(at, size), at)
                at += UNIT + _padded(size)
            if header == _ZEROS:
                if start != at:
                    msg = f"has no member after the header at offset {start:,}."
                    raise ShardFormatError(msg)
                return
            kind = header[156]
            if kind == ord("S"):
                raise _sparse(at)
            own_name = _ustar_name(header)
            own_size = _number(header[124:136], at)
            size = own_size if names.size is None else names.size
            # A member of the oldest kind that ends in a slash is a folder.
            folder = kind == 0 and own_name.endswith("/")
            if kind in _WITHOUT_BODY or folder:
                self.end = at + UNIT
                continue
            self._require(at, size)
            self.end = at + UNIT + _padded(size)
            if kind in _REGULAR:
                name = own_name if names.name is None else names.name
                yield Member(start, name, at + UNIT, size, zlib.crc32(header, names.crc))

    def _header(self, at: int) -> bytes:
        header = self._read(at, UNIT)
        if len(header) < UNIT:
            msg = (
                f"is truncated: {len(header)} of {UNIT} bytes of the header at offset {at:,} "
                f"are there. Write it again."
            )
            raise ShardFormatError(msg)
        if header != _ZEROS:
            _check_sum(header, at)
        return header

    def _body(self, at: int, size: int) -> bytes:
        self._require(at, size)
        return self._read(at + UNIT, size)

    def _require(self, at: int, size: int) -> None:
        there = self._size - at - UNIT
        if there < size:
            msg = (
                f"is truncated: the member at offset {at:,} has {size:,} bytes, but only "
                f"{there:,} are there. Write it again."
            )
            raise ShardFormatError(msg)


class _Names:
    """The name and size of a member, from the headers before it."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.size: int | None = None
        self.crc = 0

    def read(self, header: bytes, body: bytes, at: int) -> None:
        self.crc = zlib.crc32(body, zlib.crc32(header, self.crc))
        kind = header[156]
        if kind == ord("L"):
            self.name = _text(body)
        if kind in b"LK":
            return
        records = _pax_records(body, at)
        if any(key.startswith(b"GNU.sparse") for key in records):
            raise _sparse(at)
        if kind == ord("g"):
            if b"path" in records or b"size" in records:
                msg = (
                    f"has a global pax header at offset {at:,} that renames or resizes members. "
                    f"Write it again without it."
                )
                raise ShardFormatError(msg)
            return
        if b"path" in records:
            self.name = records[b"path"].decode("utf-8", "surrogateescape").rstrip("/")
        if b"size" in records:
            self.size = _decimal(records[b"size"], at)


def _padded(size: int) -> int:
    return -(-size // UNIT) * UNIT


def _sparse(at: int) -> ShardFormatError:
    return ShardFormatError(
        f"has a sparse member at offset {at:,}. Write it again without --sparse."
    )


def _check_sum(header: bytes, at: int) -> None:
    try:
        stored = int(header[148:156].partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        stored = -1
    # The sum counts spaces in place of itself.
    total = _sum(header[:256]) + _sum(header[256:]) - sum(header[148:156]) + 8 * ord(" ")
    if stored == total:
        return
    # Some writers count bytes as signed.
    counted = header[:148] + header[156:]
    if stored != total - 256 * sum(byte >= _SIGN for byte in counted):
        msg = (
            f"has no tar header at offset {at:,}: the checksum there does not fit. It is damaged, "
            f"or no tar file. Download or write it again."
        )
        raise ShardFormatError(msg)


def _sum(part: bytes) -> int:
    """Add up to 256 bytes: Adler's checksum has one more than the sum, modulo 65521.

    It takes a fifth of the time of `sum`, where a third of a scan went.

    >>> _sum(bytes([255]) * 256) == 255 * 256
    True
    """
    return (zlib.adler32(part) & 0xFFFF) - 1


def _number(field: bytes, at: int) -> int:
    """Read a size: octal digits, or base 256 after a byte of 0x80."""
    if field[0] == _SIGN:
        return int.from_bytes(field[1:], "big")
    try:
        number = int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        msg = f"has an invalid size {field!r} in the header at offset {at:,}."
        raise ShardFormatError(msg)
    return number


def _decimal(text: bytes, at: int) -> int:
    if not text.isdigit():
        msg = f"has an invalid size {text!r} in the pax header at offset {at:,}."
        raise ShardFormatError(msg)
    return int(text)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _ustar_name(header: bytes) -> str:
    name = _text(header[:100])
    return f"{_text(header[345:500])}/{name}" if header[345] else name


def _pax_records(text: bytes, at: int) -> dict[bytes, bytes]:
    """Read records of the form "length key=value newline"."""
    records = {}
    position = 0
    while position < len(text) and text[position]:
        length, space, _ = text[position : position + 20].partition(b" ")
        end = position + int(length) if length.isdigit() else -1
        key, equals, value = text[position + len(length) + 1 : end - 1].partition(b"=")
        if (
            not space
            or not equals
            or not position < end <= len(text)
            or text[end - 1 : end] != b"\n"
        ):
            msg = f"has a damaged pax header at offset {at:,}."
            raise ShardFormatError(msg)
        records[key] = value
        position = end
    return records
