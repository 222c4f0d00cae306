"""Parquet: a block is a row group, found in the footer and decoded into an Arrow file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dataporter.errors import ShardChangedError, ShardError, ShardFormatError
from dataporter.shards.formats.arrow import open_batches, write_decoded
from dataporter.shards.formats.columns import describe
from dataporter.shards.formats.evidence import damaged, evidence
from dataporter.shards.formats.format import Format, Rows, check_columns
from dataporter.shards.shard_file import Block, Scanned, ShardFile

EXPECTED = "a Parquet file"
MAGIC = b"PAR1"
TAIL = 64 << 10  # bytes read at first, which most footers fit into
END = 8  # bytes after the footer: its length and the magic
LARGE_BLOCK = 256 << 20  # decoded bytes
LARGE_FILE = 64 << 20  # bytes of a file that should have several row groups
# What pyarrow raises for damaged data.
DAMAGE = (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError)
WIDTHS = {"BOOLEAN": 1 / 8, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}


class ParquetFormat(Format):
    """Parquet, with any encoding and compression that pyarrow reads."""

    name = "parquet"
    scan_options = ("columns",)  # the decoded bytes of a block are those of the columns read

    def scan(self, file: ShardFile) -> Scanned:
        footer = _read_footer(file)
        try:
            blocks = list(self._blocks(file, footer))
        except DAMAGE as error:
            raise damaged(file, EXPECTED, f"its footer cannot be read: {error}") from error
        rows = sum(block.rows for block in blocks)
        if rows != footer.metadata.num_rows:
            reason = f"the row groups have {rows} rows, the file {footer.metadata.num_rows}"
            raise damaged(file, EXPECTED, reason)
        warnings = _warnings(file.name, footer, blocks)
        return Scanned(tuple(blocks), {"columns": footer.columns}, warnings)

    def check(self, schema: Mapping[str, Any]) -> None:
        check_columns(self.options.columns, schema["columns"])

    def is_mapped(self, schema: Mapping[str, Any]) -> bool:
        del schema
        return False

    def shared_part(self, begin: int, end: int, size: int) -> tuple[int, int] | None:
        del begin
        return end, size  # the footer

    def decode(self, file: ShardFile, block: Block, schema: Mapping[str, Any], to: Path) -> None:
        del schema
        columns = self.options.columns
        try:
            metadata = _parsed(_raw_footer(file, END))
            number = _find(file.name, metadata, block)
            selected = self._selected_chunks(metadata.row_group(number))
            file.expect([_bytes_of(chunk) for chunk in selected])
            opened = pq.ParquetFile(
                pa.PythonFile(_Source(file), "r"),
                metadata=metadata,
                page_checksum_verification=True,
            )
            wanted = None if columns is None else list(columns)
            table = opened.read_row_group(number, columns=wanted, use_threads=False)
        except DAMAGE as error:
            if isinstance(error, ShardError) or getattr(error, "errno", None) is not None:
                raise  # of the system or the storage, not of the file's contents
            msg = (
                f"A row group cannot be decoded: {file.name}, the one at byte {block.offset}. "
                f"Found damaged or unsupported data: {str(error).rstrip('.')}. Download or write "
                "the file again."
            )
            raise ShardFormatError(msg) from error
        if table.num_rows != block.rows:
            raise _changed(file.name, block, f"it has {table.num_rows} rows")
        write_decoded(file.name, table.to_batches(), self.options, to)

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        del schema
        return open_batches(data, block, self.options)

    def _blocks(self, file: ShardFile, footer: Footer) -> Iterator[Block]:
        for number in range(footer.metadata.num_row_groups):
            group = footer.metadata.row_group(number)
            if group.num_rows:
                yield self._block(file, footer, number, group)

    def _block(
        self, file: ShardFile, footer: Footer, number: int, group: pq.RowGroupMetaData
    ) -> Block:
        start = end = -1
        decoded = 0.0
        for place in range(group.num_columns):
            column = group.column(place)
            first, last = _bytes_of(column)
            if not len(MAGIC) <= first <= last <= footer.offset:
                reason = f"row group {number} has a column at bytes {first} to {last}"
                raise damaged(file, EXPECTED, reason)
            start = first if start < 0 else min(start, first)
            end = max(end, last)
            if self._is_selected(column.path_in_schema):
                decoded += _decoded_bytes(column, group.num_rows)
        checksum = evidence([footer.digest, number.to_bytes(8, "little")])
        return Block(max(start, 0), max(end - start, 0), group.num_rows, int(decoded), checksum)

    def _selected_chunks(self, group: pq.RowGroupMetaData) -> list[pq.ColumnChunkMetaData]:
        columns = map(group.column, range(group.num_columns))
        return [column for column in columns if self._is_selected(column.path_in_schema)]

    def _is_selected(self, path_in_schema: str) -> bool:
        columns = self.options.columns
        return columns is None or any(
            path_in_schema == name or path_in_schema.startswith(name + ".") for name in columns
        )


class Footer(NamedTuple):
    """The footer of a file: its hash, its first byte, its contents."""

    digest: bytes
    offset: int
    metadata: pq.FileMetaData
    columns: dict[str, str]


def _read_footer(file: ShardFile) -> Footer:
    raw = _raw_footer(file, TAIL)
    try:
        metadata = _parsed(raw)
        columns = describe(metadata.schema.to_arrow_schema(), file.name)
    except DAMAGE as error:
        raise damaged(file, EXPECTED, f"its footer cannot be read: {error}") from error
    return Footer(blake2b(raw).digest(), file.size - len(raw), metadata, columns)


def _raw_footer(file: ShardFile, at_first: int) -> bytes:
    """Read the footer up to the end of the file: `at_first` bytes, then the rest of it."""
    tail = bytes(file.read(max(file.size - at_first, 0), at_first))
    if len(tail) < END or tail[-4:] != MAGIC:
        if tail[-4:] == b"PARE":
            raise damaged(file, EXPECTED, "its footer is encrypted, which is not supported")
        raise damaged(file, EXPECTED, f"it ends with {tail[-4:]!r} instead of b'PAR1'")
    length = int.from_bytes(tail[-END:-4], "little") + END
    if length > file.size - 4:
        raise damaged(file, EXPECTED, f"its footer has {length} of {file.size} bytes")
    if length > len(tail):
        tail = bytes(file.read(file.size - length, length - len(tail))) + tail
    return tail[-length:]


def _parsed(footer: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(MAGIC + footer))


def _bytes_of(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the first byte and the end of a column in a row group."""
    first = _first_byte(column)
    return first, first + column.total_compressed_size


def _first_byte(column: pq.ColumnChunkMetaData) -> int:
    data: int = column.data_page_offset
    dictionary = column.dictionary_page_offset if column.has_dictionary_page else None
    return min(dictionary or data, data)


def _decoded_bytes(column: pq.ColumnChunkMetaData, rows: int) -> float:
    """Estimate the bytes of a column in Arrow: its values, and lists' or strings' offsets."""
    values: int = column.num_values
    width = WIDTHS.get(column.physical_type)
    lists = 4 * rows if values != rows else 0
    validity = values / 8
    if width is not None:
        return values * width + validity + lists
    size: float = column.total_uncompressed_size
    if "PLAIN_DICTIONARY" in column.encodings or "RLE_DICTIONARY" in column.encodings:
        size = max(size, values * (4 + _length_by_statistics(column)))
    return size + validity + lists


def _length_by_statistics(column: pq.ColumnChunkMetaData) -> float:
    """Guess the mean length of encoded values by the least and the greatest."""
    try:
        statistics = column.statistics
        if statistics is None or not statistics.has_min_max:
            return 0
        ends = (statistics.min_raw, statistics.max_raw)
    except (pa.ArrowException, NotImplementedError, ValueError):
        return 0
    return sum(len(end) for end in ends if isinstance(end, bytes | str)) / 2


def _find(name: str, metadata: pq.FileMetaData, block: Block) -> int:
    """Return the number of a block's row group."""
    end = block.offset + block.size
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows != block.rows:
            continue
        # The first column excludes most row groups, so that few have all their columns read.
        if group.num_columns and not block.offset <= _first_byte(group.column(0)) < end:
            continue
        columns = map(group.column, range(group.num_columns))
        if min(map(_first_byte, columns), default=0) == block.offset:
            return number
    raise _changed(name, block, "no row group begins there")


def _changed(name: str, block: Block, found: str) -> ShardChangedError:
    return ShardChangedError(
        f"The file has changed since it was indexed: {name}. A row group of {block.rows} rows was "
        f"at byte {block.offset}, now {found}. Restore the file, or build the index again."
    )


def _warnings(name: str, footer: Footer, blocks: Sequence[Block]) -> tuple[str, ...]:
    largest = max((block.decoded for block in blocks), default=0)
    is_single = len(blocks) == 1 and footer.offset > LARGE_FILE
    if largest <= LARGE_BLOCK and not is_single:
        return ()
    rows = max(block.rows for block in blocks)
    share = max(1, min(rows, rows * (16 << 20) // max(largest, 1)))
    warning = (
        f"{name} has a row group of {largest >> 20} MiB decoded ({rows:,} rows), which is read as "
        f"one block. Write it again with row_group_size={share}."
    )
    return (warning,)


class _Source:
    """A file of a dataset as pyarrow reads it: the methods of a Python file that it calls."""

    closed = False

    def __init__(self, file: ShardFile) -> None:
        self._file = file
        self._position = 0

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}
        self._position = starts[whence] + offset
        return self._position

    def read(self, size: int) -> bytes:
        return bytes(self.read_buffer(size))

    def read_buffer(self, size: int) -> memoryview:
        """Read without a copy: pyarrow prefers this method to `read`."""
        found = self._file.read(self._position, size)
        self._position += len(found)
        return found

    def close(self) -> None:
        """Do nothing, since the file is the caller's."""
