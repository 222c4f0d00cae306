"""Messages of an Arrow IPC file: found by their headers, without reading their bodies.

pyarrow reads record batches, but does not tell where they lie. So the four tables that tell are
read here: Message, RecordBatch, its Buffers, and Footer, as flatbuffers of Arrow's specification.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MAGIC = b"ARROW1"
START = 8  # bytes of the magic and its padding, before the first message of the file format
CONTINUATION = b"\xff\xff\xff\xff"
END = CONTINUATION + bytes(4)
SCHEMA, DICTIONARY, BATCH = 1, 2, 3  # kinds of messages
PREFIX = 8  # bytes before a header: the continuation marker and the header's length
PADDING = 64  # bytes that may follow a message
LENGTH = 8  # bytes before a compressed buffer: its length once decompressed


class BrokenMessageError(Exception):
    """The bytes are no Arrow messages, or end before the last of them does."""


class Message(NamedTuple):
    """A message in a file: a dictionary, a record batch, or the schema before them."""

    offset: int
    size: int  # bytes of header and body
    kind: int
    rows: int
    is_compressed: bool
    decoded: int  # bytes of the body once decompressed
    header: bytes


def messages_of(file: BinaryIO) -> Iterator[Message]:
    """Find the dictionaries and record batches of a file in either format."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    if file.read(len(MAGIC)) == MAGIC:
        yield from _by_footer(file, size)
    else:
        yield from _one_by_one(file, size)


def _one_by_one(file: BinaryIO, size: int) -> Iterator[Message]:
    """Walk the stream format. Its last message must be followed by the end marker."""
    offset = 0
    while True:
        file.seek(offset)
        start = file.read(len(END))
        if start == END:
            break
        if not start:
            msg = "it ends without the end-of-stream marker"
            raise BrokenMessageError(msg)
        message = _message(file, offset, size, (DICTIONARY, BATCH) if offset else (SCHEMA,))
        if message.kind != SCHEMA:
            yield message
        offset += message.size
    if offset + len(END) != size:
        msg = f"{size - offset - len(END)} bytes follow the end-of-stream marker"
        raise BrokenMessageError(msg)


def _by_footer(file: BinaryIO, size: int) -> Iterator[Message]:
    """Read the footer of the file format, which lists dictionaries and record batches."""
    file.seek(max(size - 10, 0))
    tail = file.read()
    if tail[4:] != MAGIC:
        msg = f"it begins with {MAGIC.decode()} but does not end with it"
        raise BrokenMessageError(msg)
    (length,) = struct.unpack("<i", tail[:4])
    if not 0 < length <= size - 10 - START:
        msg = f"its footer has an impossible length of {length} bytes"
        raise BrokenMessageError(msg)
    file.seek(size - 10 - length)
    footer = Table.root(file.read(length))
    messages = []
    for field, kind in ((2, DICTIONARY), (3, BATCH)):
        for place in footer.structs(field, 24):
            (offset,) = footer.unpack("<q", place)
            messages.append(_message(file, offset, size, (kind,)))
    begin = _end_of_schema(file, size)
    if begin is None:
        begin = min((message.offset for message in messages), default=size - 10 - length)
    unlisted = size - 10 - length - begin - sum(message.size for message in messages)
    if not 0 <= unlisted <= len(END) + PADDING * (1 + len(messages)):
        msg = f"its footer does not list all record batches: {unlisted} bytes are left over"
        raise BrokenMessageError(msg)
    yield from messages


def _end_of_schema(file: BinaryIO, size: int) -> int | None:
    """Return the end of the schema before the first record batch, None if it is no message.

    polars does not write it as one. The schema in the footer is the one that counts.
    """
    file.seek(START)
    if file.read(len(CONTINUATION)) != CONTINUATION:
        return None
    return START + _message(file, START, size, (SCHEMA,)).size


def _message(file: BinaryIO, offset: int, size: int, kinds: tuple[int, ...]) -> Message:
    file.seek(offset if 0 <= offset <= size else size)
    start = file.read(PREFIX)
    if len(start) < PREFIX or start[:4] != CONTINUATION:
        msg = f"no message begins at byte {offset}"
        raise BrokenMessageError(msg)
    (length,) = struct.unpack("<i", start[4:])
    if not 0 < length <= size - offset - PREFIX:
        msg = f"the header at byte {offset} has {length} bytes, {size - offset - PREFIX} are left"
        raise BrokenMessageError(msg)
    raw = file.read(length)
    header = Table.root(raw)
    kind, body = header.number(1, "<B"), header.number(3, "<q")
    if kind not in kinds:
        msg = f"the message at byte {offset} is of kind {kind}, expected {kinds}"
        raise BrokenMessageError(msg)
    end = offset + PREFIX + length + body
    if not offset + PREFIX + length <= end <= size:
        msg = f"the message at byte {offset} ends at byte {end}, the file at {size}"
        raise BrokenMessageError(msg)
    rows, decoded, is_compressed = 0, body, False
    if kind == BATCH:
        batch = header.table(2)
        rows = batch.number(0, "<q")
        is_compressed = batch.has(3)
        if rows < 0:
            msg = f"the record batch at byte {offset} has {rows} rows"
            raise BrokenMessageError(msg)
        if is_compressed:
            decoded = _decompressed(file, batch, offset + PREFIX + length, end)
    return Message(offset, end - offset, kind, rows, is_compressed, decoded, raw)


def _decompressed(file: BinaryIO, batch: Table, start: int, end: int) -> int:
    """Add up the sizes of a batch's buffers, which each gives in its first 8 bytes."""
    total = 0
    for place in batch.structs(2, 16):
        offset, length = batch.unpack("<qq", place)
        if length < LENGTH:
            continue
        if not start <= start + offset <= end - LENGTH:
            msg = f"a buffer begins at byte {start + offset}, outside of its message"
            raise BrokenMessageError(msg)
        file.seek(start + offset)
        (size,) = struct.unpack("<q", file.read(LENGTH))
        total += length - LENGTH if size == -1 else max(size, 0)  # -1: stored as it is
    return total


class Table(NamedTuple):
    """A table of a flatbuffer: fields are found through its vtable."""

    data: bytes
    position: int

    @classmethod
    def root(cls, data: bytes) -> Table:
        """Return the table that a flatbuffer begins with."""
        return cls(data, cls(data, 0).unpack("<I", 0)[0])

    def unpack(self, layout: str, position: int) -> tuple[int, ...]:
        """Read integers at a position of the flatbuffer."""
        if position < 0:
            msg = "a header points outside of itself"
            raise BrokenMessageError(msg)
        try:
            return struct.unpack_from(layout, self.data, position)
        except struct.error as error:
            msg = "a header points outside of itself"
            raise BrokenMessageError(msg) from error

    def has(self, field: int) -> bool:
        """Return True if a field has a value other than its default."""
        return self._place(field) is not None

    def number(self, field: int, layout: str) -> int:
        """Return a number, 0 by default."""
        place = self._place(field)
        return 0 if place is None else self.unpack(layout, place)[0]

    def table(self, field: int) -> Table:
        """Return the table that a field points to."""
        place = self._place(field)
        if place is None:
            msg = "a header lacks its contents"
            raise BrokenMessageError(msg)
        return Table(self.data, place + self.unpack("<I", place)[0])

    def structs(self, field: int, width: int) -> range:
        """Return the positions of the structs in a vector."""
        if not self.has(field):
            return range(0)
        vector = self.table(field).position
        (count,) = self.unpack("<I", vector)
        if count * width > len(self.data):
            msg = "a header points outside of itself"
            raise BrokenMessageError(msg)
        return range(vector + 4, vector + 4 + count * width, width)

    def _place(self, field: int) -> int | None:
        vtable = self.position - self.unpack("<i", self.position)[0]
        (size,) = self.unpack("<H", vtable)
        if 4 + 2 * field + 2 > size:
            return None
        (place,) = self.unpack("<H", vtable + 4 + 2 * field)
        return self.position + place if place else None
