"""JSON lines, plain or compressed: a sample is `json.loads(line)`.

A plain file is mapped, and its blocks are slices cut at newlines. A compressed file is decoded;
its blocks are groups of frames. Frames may end inside a line: then a block begins after the first
newline of its frames, and ends with the line that its last frame but one has begun. Frames at
such a boundary belong to two blocks. The checksum of a block, which is that of its lines, tells
where in its frames the lines begin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dataporter.arguments import did_you_mean
from dataporter.errors import ShardChangedError, ShardFormatError, ShardSchemaError
from dataporter.shards.formats.compression import STEP, BrokenFrameError, compression_of, pieces_of
from dataporter.shards.formats.evidence import Evidence, damaged, evidence
from dataporter.shards.formats.format import Format, Rows, Sample
from dataporter.shards.shard_file import Block, Scanned, ShardFile

# Lines are looked for when a block is opened, at about 1 ms for this many bytes.
TARGET = 2 << 20  # bytes of lines in a block
LARGE = 64 << 20  # bytes of a block that is worth a warning
SPACE = b" \t\r\n"
NEWLINE, BRACE = 10, 123
MARK = b"\xef\xbb\xbf"  # of UTF-8, which some editors put at the beginning of a file
EXPECTED = "a file of JSON lines"


class JsonLinesFormat(Format):
    """JSON lines: one object in each line, blank lines between them."""

    name = "jsonl"
    fixes_schema = False

    def scan(self, file: ShardFile) -> Scanned:
        lines = Lines(file)
        with file.open() as opened:
            start = opened.read(4)
            opened.seek(0)
            compression = compression_of(start)
            if not start and file.name.endswith((".gz", ".zst")):
                raise damaged(file, "compressed JSON lines", "nothing is in it")
            if compression is None:
                blocks = list(_plain_blocks(opened, lines))
            else:
                try:
                    blocks = list(_frame_blocks(opened, compression, lines))
                except BrokenFrameError as error:
                    raise damaged(file, f"{compression} data", str(error)) from error
        lines.finish()
        schema = {"columns": lines.columns, "compression": compression}
        warnings = []
        largest = max((block.decoded for block in blocks), default=0)
        if compression and largest > LARGE:
            warnings.append(
                f"{file.name} has a block of {largest >> 20} MiB decompressed, since "
                f"{compression} data can only be read from the beginning of a frame. Write several "
                f"frames, as by {'bgzip' if compression == 'gzip' else 'pzstd'}, or several files."
            )
        return Scanned(tuple(block for block in blocks if block.rows), schema, tuple(warnings))

    def is_mapped(self, schema: Mapping[str, Any]) -> bool:
        return schema.get("compression") is None

    def decode(self, file: ShardFile, block: Block, schema: Mapping[str, Any], to: Path) -> None:
        text, starts = file.read(block.offset, block.size), [0]
        if schema["compression"] is not None:
            plain = _decompressed(file, text, block.offset, schema["compression"])
            text, starts = memoryview(plain), [0, plain.find(b"\n") + 1]
        for start in starts:
            lines = text[start : start + block.decoded]
            if evidence([lines]) == block.checksum:
                to.write_bytes(lines)
                return
        msg = (
            f"The file has changed since it was indexed: {file.name}, bytes {block.offset} to "
            f"{block.offset + block.size}. Restore the file, or build the index again."
        )
        raise ShardChangedError(msg)

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        del schema
        text = data[block.offset : block.offset + block.size]
        starts, ends = line_bounds(text)
        if len(starts) != block.rows:
            msg = (
                f"The file has changed since it was indexed: the block at byte {block.offset} has "
                f"{len(starts)} lines, expected {block.rows}. Restore the file, or build the "
                "index again."
            )
            raise ShardChangedError(msg)
        columns = self.options.columns

        def rows(numbers: Sequence[int]) -> list[Sample]:
            samples = []
            for number in numbers:
                start = int(starts[number])
                line = bytes(text[start : ends[number]])
                samples.append(_sample(line, block.offset + start, columns))
            return samples

        return rows


class Lines:
    """The lines of a file as a scan meets them: checked, and the first one described."""

    def __init__(self, file: ShardFile) -> None:
        self.file = file
        self.number = 0  # of lines so far, blank ones too
        self.position = 0  # in the text
        self.columns: dict[str, str] = {}
        self._has_rows = False
        self._last = b""

    def count(self, text: bytes) -> int:
        """Count the rows of some lines. Only the last line of a file may lack its newline."""
        starts, ends = line_bounds(text, skip_mark=self.position == 0)
        if len(starts):
            self._check_beginnings(text, starts, ends)
            if not self._has_rows:
                self._describe(text[starts[0] : ends[0]])
            self._has_rows = True
            self._last = text[starts[-1] :]
        self.number += text.count(b"\n")
        self.position += len(text)
        return len(starts)

    def finish(self) -> None:
        """Raise if the last line is cut off."""
        if self._last and not self._last.rstrip(b" \t\r").endswith(b"\n"):
            self._parse(self._last, self.position - len(self._last), "The last line is cut off")

    def _check_beginnings(
        self, text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        firsts = np.frombuffer(text, np.uint8)[starts]
        for place in np.flatnonzero(firsts != BRACE):
            start = int(starts[place])
            line = text[start : ends[place]]
            if not line.lstrip(SPACE).startswith(b"{"):
                raise self._no_object(line, start, text.count(b"\n", 0, start))

    def _describe(self, line: bytes) -> None:
        row = self._parse(line, self.position, "The first line is no JSON")
        self.columns = {name: type(value).__name__ for name, value in row.items()}

    def _parse(self, line: bytes, position: int, wrong: str) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError) as error:
            msg = (
                f"{wrong}: {self.file.name}, at byte {position}. Found {_short(line)}: {error}. "
                "Expected a JSON object in each line. Download or write the file again."
            )
            raise ShardFormatError(msg) from error
        return row

    def _no_object(self, line: bytes, start: int, before: int) -> ShardFormatError:
        place = f"line {self.number + before + 1}, byte {self.position + start}"
        reason = f"{place} begins with {_short(line)}, expected a JSON object"
        if line.startswith(b"["):
            reason += (
                " (a file that is one JSON array has to be written as one object in each line)"
            )
        return damaged(self.file, EXPECTED, reason)


def line_bounds(
    text: bytes | memoryview, *, skip_mark: bool = True
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first byte of each line that is not blank, and the byte after its last."""
    data = np.frombuffer(text, np.uint8)
    newlines = np.flatnonzero(data == NEWLINE)
    starts = np.concatenate(([0], newlines + 1))
    if skip_mark and bytes(text[: len(MARK)]) == MARK:
        starts[0] = len(MARK)
    ends = np.append(newlines, len(data))
    keep = starts < ends
    firsts = data[np.minimum(starts, max(len(data) - 1, 0))] if len(data) else starts
    # A line that begins with white space is rare: only such a line is read here.
    for place in np.flatnonzero(keep & np.isin(firsts, list(SPACE))):
        keep[place] = bool(bytes(text[starts[place] : ends[place]]).strip(SPACE))
    return starts[keep], ends[keep]


def _plain_blocks(file: BinaryIO, lines: Lines) -> Iterator[Block]:
    offset = 0
    while text := file.read(TARGET):
        if not text.endswith(b"\n"):
            text += file.readline()
        yield Block(offset, len(text), lines.count(text), len(text), evidence([text]))
        offset += len(text)


def _frame_blocks(file: BinaryIO, compression: str, lines: Lines) -> Iterator[Block]:
    """Group frames into blocks of about TARGET bytes."""
    block = _Gathered(0)
    following: _Gathered | None = None  # begun by a frame that goes on with a line of `block`
    rest: list[bytes] = []  # the beginning of a line
    end = 0
    for text, frame_end in pieces_of(iter(lambda: file.read(STEP), b""), compression):
        cut = text.find(b"\n") + 1 if following else 0
        last = text.rfind(b"\n") + 1
        if following and cut:
            block.add(b"".join([*rest, text[:cut]]), lines)
            block.is_whole, rest = True, []
        if last > cut:
            target = following if following and block.is_whole else block
            target.add(b"".join([*rest, text[cut:last]]), lines)
            rest = []
        rest.append(text[last:])
        if frame_end is None:
            continue
        end = frame_end
        if following and block.is_whole:
            yield block.close(end)
            block, following = following, None
        if following is None and block.decoded >= TARGET:
            if any(rest):
                following = _Gathered(end)
            else:
                yield block.close(end)
                block = _Gathered(end)
    block.add(b"".join(rest), lines)
    yield block.close(end)


class _Gathered:
    """The lines of a block, as they are gathered from its frames."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.rows = 0
        self.decoded = 0
        self.is_whole = False  # its last line has ended
        self._evidence = Evidence()

    def add(self, text: bytes, lines: Lines) -> None:
        self.rows += lines.count(text)
        self.decoded += len(text)
        self._evidence.add(text)

    def close(self, end: int) -> Block:
        size = end - self.offset
        return Block(self.offset, size, self.rows, self.decoded, self._evidence.value())


def _decompressed(file: ShardFile, data: memoryview, offset: int, compression: str) -> bytes:
    """Decompress the frames of a block that begins at an offset of a file."""
    parts = (data[start : start + STEP] for start in range(0, len(data), STEP))
    try:
        return b"".join(piece.text for piece in pieces_of(parts, compression, offset))
    except BrokenFrameError as error:
        raise damaged(file, f"{compression} data", str(error)) from error


def _sample(line: bytes, position: int, columns: Sequence[str] | None) -> Sample:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = (
            f"A line is no JSON: the one at byte {position} of its file. Found {_short(line)}: "
            f"{error}. Correct the line, or write the file again."
        )
        raise ShardFormatError(msg) from error
    if not isinstance(row, dict):
        msg = (
            f"A line is no JSON object: the one at byte {position} of its file. Found "
            f"{type(row).__name__} {_short(line)}. Write one object in each line."
        )
        raise ShardFormatError(msg)
    if columns is None:
        return row
    selected = {name: row[name] for name in columns if name in row}
    if columns and not selected:
        hint = did_you_mean(columns[0], row)
        msg = (
            f"A line has none of the columns {', '.join(map(repr, columns))}: the one at byte "
            f"{position} of its file.{hint} It has {', '.join(map(repr, row)) or 'none'}."
        )
        raise ShardSchemaError(msg)
    return selected


def _short(line: bytes) -> str:
    return repr(line if len(line) <= 60 else line[:57] + b"...")  # noqa: PLR2004
