"""Rows of LitData chunks: plain ones, those in an Arrow file, and windows of tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from dataporter.errors import ShardFormatError
from dataporter.shards.formats.format import Rows, Sample, check_columns
from dataporter.shards.formats.litdata_values import Decode, Tree, leaf_decoder
from dataporter.shards.formats.tokens import COLUMN as TOKENS

_ARROW_MAGIC = b"LDARW01\0"  # at the end of a chunk with an Arrow file, after the file's size
_ARROW_TAIL = struct.Struct(f"<I{len(_ARROW_MAGIC)}s")


class Column(NamedTuple):
    """A column of plain rows."""

    name: str
    tree: Tree
    first: int  # of its leaves
    decoders: list[Decode]


class PlainRows:
    """The rows of a plain chunk: sizes of the leaves, then the leaves."""

    def __init__(
        self, data: memoryview, offsets: list[int], leaves: int, columns: list[Column]
    ) -> None:
        self._data = data
        self._offsets = offsets
        self._columns = columns
        self._sizes = struct.Struct(f"<{leaves}I")

    def __call__(self, numbers: Sequence[int]) -> list[Sample]:
        return [self._read(number) for number in numbers]

    def _read(self, number: int) -> Sample:
        begin, end = self._offsets[number], self._offsets[number + 1]
        at = begin + self._sizes.size
        if at > end:
            raise _damaged(number, "is too short for the sizes of its values")
        ends = [at]
        for size in self._sizes.unpack_from(self._data, begin):
            at += size
            ends.append(at)
        if at != end:
            raise _damaged(number, f"has {end - begin:,} bytes, but its values have {at - begin:,}")
        sample: Sample = {}
        for name, tree, first, decoders in self._columns:
            try:
                leaves = [
                    decode(self._data[ends[leaf] : ends[leaf + 1]])
                    for leaf, decode in enumerate(decoders, first)
                ]
            except Exception as error:
                found = f"has a damaged value {name!r} ({type(error).__name__}: {error})"
                raise _damaged(number, found) from error
            sample[name] = leaves[0] if tree.kind is None else tree.build(iter(leaves))
        return sample


def token_width(data_format: str) -> int:
    """Return the bytes of a token."""
    empty = leaf_decoder(data_format, allow_pickle=False)(memoryview(b""))
    return int(empty.dtype.itemsize)


def token_rows(data: memoryview, offset: int, data_format: str, window: int) -> Rows:
    """Open windows of tokens that lie end to end."""
    decode = leaf_decoder(data_format, allow_pickle=False)
    size = window * token_width(data_format)

    def rows(numbers: Sequence[int]) -> list[Sample]:
        starts = [offset + number * size for number in numbers]
        return [{TOKENS: decode(data[start : start + size])} for start in starts]

    return rows


def end_of_rows(tail: memoryview, size: int) -> int:
    """Return the end of the plain rows: of the chunk, or the start of its Arrow file.

    `tail` is the end of the chunk, or all of it, and `size` the bytes of the chunk.
    """
    if len(tail) >= _ARROW_TAIL.size:
        arrow_size, magic = _ARROW_TAIL.unpack_from(tail, len(tail) - _ARROW_TAIL.size)
        if magic == _ARROW_MAGIC:
            return size - _ARROW_TAIL.size - int(arrow_size)
    return size


def arrow_rows(data: memoryview, rows: int, columns: tuple[str, ...] | None) -> Rows:
    """Open the rows in the Arrow file at the end of a chunk."""
    table = _arrow_table(data[end_of_rows(data, len(data)) : len(data) - _ARROW_TAIL.size])
    if table.num_rows != rows:
        msg = (
            f"The chunk has {table.num_rows:,} rows in its Arrow file, but {rows:,} were indexed. "
            f"Copy the file again."
        )
        raise ShardFormatError(msg)
    if columns is not None:
        check_columns(columns, table.column_names)
        table = table.select(list(columns))

    def read(numbers: Sequence[int]) -> list[Sample]:
        return [table.slice(number, 1).to_pylist()[0] for number in numbers]

    return read


def _arrow_table(file: memoryview) -> Any:
    import pyarrow as pa  # noqa: PLC0415  few chunks need it

    try:
        buffer = pa.py_buffer(file)
        is_file = bytes(file[:6]) == b"ARROW1"
        opened = pa.ipc.open_file(buffer) if is_file else pa.ipc.open_stream(buffer)
        table = opened.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        msg = f"The Arrow file in the chunk is damaged: {error}. Copy the file again."
        raise ShardFormatError(msg) from error
    return table


def _damaged(row: int, found: str) -> ShardFormatError:
    return ShardFormatError(f"Row {row:,} of the chunk {found}. Copy the file again.")
