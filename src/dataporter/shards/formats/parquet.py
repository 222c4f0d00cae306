"""Parquet: a block is a row group, found in the footer and decoded into an Arrow file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dataporter.errors import ShardChangedError, ShardFormatError
from dataporter.mapping import map_file
from dataporter.shards.blocks import Block, Scanned
from dataporter.shards.formats.arrow import open_batches, write_decoded
from dataporter.shards.formats.chosen import check_columns
from dataporter.shards.formats.columns import describe
from dataporter.shards.formats.damage import damaged
from dataporter.shards.formats.evidence import evidence, evidence_of_ends
from dataporter.shards.formats.format import Format, Rows

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

    def scan(self, path: Path) -> Scanned:
        footer = _read_footer(path)
        try:
            blocks = list(self._blocks(path, footer))
        except DAMAGE as error:
            raise damaged(path, EXPECTED, f"its footer cannot be read: {error}") from error
        rows = sum(block.rows for block in blocks)
        if rows != footer.metadata.num_rows:
            reason = f"the row groups have {rows} rows, the file {footer.metadata.num_rows}"
            raise damaged(path, EXPECTED, reason)
        return Scanned(tuple(blocks), {"columns": footer.columns}, _warnings(path, footer, blocks))

    def check(self, schema: Mapping[str, Any]) -> None:
        check_columns(self.options.columns, schema["columns"])

    def is_mapped(self, schema: Mapping[str, Any]) -> bool:
        del schema
        return False

    def decode(self, path: Path, block: Block, schema: Mapping[str, Any], to: Path) -> None:
        del schema
        columns = self.options.columns
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                number = _find(path, file.metadata, block)
                wanted = None if columns is None else list(columns)
                table = file.read_row_group(number, columns=wanted, use_threads=False)
        except DAMAGE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the system, not of the file's contents
            msg = (
                f"A row group cannot be decoded: {path}, the one at byte {block.offset}. Found "
                f"damaged or unsupported data: {str(error).rstrip('.')}. Download or write the "
                "file again."
            )
            raise ShardFormatError(msg) from error
        if table.num_rows != block.rows:
            raise _changed(path, block, f"it has {table.num_rows} rows")
        write_decoded(path, table.to_batches(), self.options, to)

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        del schema
        return open_batches(data, block, self.options)

    def _blocks(self, path: Path, footer: Footer) -> Iterator[Block]:
        with path.open("rb") as file:
            data = map_file(file.fileno())
        for number in range(footer.metadata.num_row_groups):
            group = footer.metadata.row_group(number)
            if group.num_rows:
                block = self._block(path, footer, number, group)
                # The footer may be the same over other values.
                ends = evidence_of_ends(data, block.offset, block.size)
                both = [block.checksum.to_bytes(8, "little"), ends.to_bytes(8, "little")]
                yield block._replace(checksum=evidence(both))

    def _block(self, path: Path, footer: Footer, number: int, group: pq.RowGroupMetaData) -> Block:
        start = end = -1
        decoded = 0.0
        for place in range(group.num_columns):
            column = group.column(place)
            first = _first_byte(column)
            last = first + column.total_compressed_size
            if not len(MAGIC) <= first <= last <= footer.offset:
                reason = f"row group {number} has a column at bytes {first} to {last}"
                raise damaged(path, EXPECTED, reason)
            start = first if start < 0 else min(start, first)
            end = max(end, last)
            if self._is_chosen(column.path_in_schema):
                decoded += _decoded_bytes(column, group.num_rows)
        checksum = evidence([footer.digest, number.to_bytes(8, "little")])
        return Block(max(start, 0), max(end - start, 0), group.num_rows, int(decoded), checksum)

    def _is_chosen(self, path_in_schema: str) -> bool:
        columns = self.options.columns
        return columns is None or any(
            path_in_schema == name or path_in_schema.startswith(name + ".") for name in columns
        )


class Footer(NamedTuple):
    """The footer of a file: a hash of it, where it begins, what it says."""

    digest: bytes
    offset: int
    metadata: pq.FileMetaData
    columns: dict[str, str]


def _read_footer(path: Path) -> Footer:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - TAIL, 0))
        tail = file.read()
        if len(tail) < END or tail[-4:] != MAGIC:
            if tail[-4:] == b"PARE":
                raise damaged(path, EXPECTED, "its footer is encrypted, which is not supported")
            raise damaged(path, EXPECTED, f"it ends with {tail[-4:]!r} instead of b'PAR1'")
        length = int.from_bytes(tail[-END:-4], "little") + END
        if length > size - 4:
            raise damaged(path, EXPECTED, f"its footer has {length} of {size} bytes")
        if length > len(tail):
            file.seek(size - length)
            tail = file.read()
    raw = tail[-length:]
    try:
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + raw))
        columns = describe(metadata.schema.to_arrow_schema(), path)
    except DAMAGE as error:
        raise damaged(path, EXPECTED, f"its footer cannot be read: {error}") from error
    return Footer(blake2b(raw).digest(), size - length, metadata, columns)


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


def _find(path: Path, metadata: pq.FileMetaData, block: Block) -> int:
    """Return the number of the row group that a block is."""
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
    raise _changed(path, block, "no row group begins there")


def _changed(path: Path, block: Block, found: str) -> ShardChangedError:
    return ShardChangedError(
        f"The file has changed since it was indexed: {path}. A row group of {block.rows} rows was "
        f"at byte {block.offset}, now {found}. Restore the file, or build the index again."
    )


def _warnings(path: Path, footer: Footer, blocks: Sequence[Block]) -> tuple[str, ...]:
    largest = max((block.decoded for block in blocks), default=0)
    is_single = len(blocks) == 1 and footer.offset > LARGE_FILE
    if largest <= LARGE_BLOCK and not is_single:
        return ()
    rows = max(block.rows for block in blocks)
    share = max(1, min(rows, rows * (16 << 20) // max(largest, 1)))
    warning = (
        f"{path} has a row group of {largest >> 20} MiB decoded ({rows:,} rows), which is read as "
        f"one block. Write it again with row_group_size={share}."
    )
    return (warning,)
