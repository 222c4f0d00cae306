"""LitData chunks, as `litdata.optimize` writes them.

A chunk is a block: offsets of its rows (see `row_offsets`), then the rows, each the sizes of its
leaves and the leaves. The index says how each leaf is stored and which tree the leaves form.

A sample that is a dict has its keys as columns, a tuple or list "0", "1" and so on, a single value
"sample". Newer versions of LitData append the rows of plain data as an Arrow file; such rows are
read from there, as LitData does. Chunks for its TokensLoader have windows of `window` tokens, in
the column "tokens", and are cut into blocks of about 8 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataporter.errors import OptionError, ShardChangedError, ShardFormatError
from dataporter.shards.blocks import Block, Scanned
from dataporter.shards.formats import litdata_packing as packing
from dataporter.shards.formats.evidence import (
    PROBE,
    ends,
    evidence_of_ends,
    read_ends,
    require_whole,
)
from dataporter.shards.formats.format import Format, Rows, check_columns
from dataporter.shards.formats.index_json import (
    folder_of,
    not_listed,
    require_size,
    row_offsets,
    size_of_head,
)
from dataporter.shards.formats.litdata_index import Chunk, litdata_index
from dataporter.shards.formats.litdata_rows import (
    Column,
    PlainRows,
    arrow_rows,
    end_of_rows,
    token_rows,
    token_width,
)
from dataporter.shards.formats.litdata_values import Tree, leaf_decoder, parse_tree
from dataporter.shards.formats.tokens import COLUMN as TOKENS
from dataporter.shards.formats.tokens import cut_windows, left_out_warnings, windows_of
from dataporter.shards.shard_file import ShardFile


class LitDataFormat(Format):
    """Chunks of a LitData folder."""

    name = "litdata"
    scan_options = ("window",)

    def scan(self, file: ShardFile) -> Scanned:
        folder, name = folder_of(file)
        index = litdata_index(folder)
        chunk = index.chunks.get(name)
        if chunk is None:
            raise not_listed(file, folder)
        if not file.size:
            msg = f"{file.name} is empty, but {folder.index} lists rows for it. Copy it again."
            raise ShardFormatError(msg)
        schema = {**index.layout._asdict(), "arrow": False}
        schema["columns"] = {
            name: schema["leaves"][first : first + tree.leaves]
            for name, tree, first in _columns(schema)
        }
        if schema["packing"] != "chunk":  # the index has no size for a file compressed as a whole
            require_size(file, chunk.size, folder)
        if schema["tokens"]:
            return self._scan_tokens(file, chunk, schema)
        longest = max(packing.size_of_head(schema["packing"], chunk.rows), PROBE)
        file.expect(ends(0, file.size, longest))
        head, tail = read_ends(file, 0, file.size, longest)
        if schema["packing"] is None:
            end = end_of_rows(tail, file.size)
            _require_rows(head, chunk.rows, end, file)
            schema["arrow"] = end != file.size
        decoded = _plain_size(file, head, chunk, schema["packing"])
        checksum = evidence_of_ends(head, tail, file.size)
        return Scanned((Block(0, file.size, chunk.rows, decoded, checksum),), schema)

    def _scan_tokens(self, file: ShardFile, chunk: Chunk, schema: dict[str, Any]) -> Scanned:
        if schema["packing"] is not None:
            msg = (
                f"{file.name} has compressed tokens, which cannot be read. Write the dataset again "
                f"without compression."
            )
            raise OptionError(msg)
        start = size_of_head(chunk.rows)
        _require_rows(file.read(0, start), chunk.rows, file.size, file)
        width = token_width(schema["leaves"][0])
        tokens = chunk.tokens or 0
        if file.size - start != tokens * width:
            msg = (
                f"{file.name} has {file.size - start:,} bytes of tokens, but its index announces "
                f"{tokens:,} tokens of {width} bytes. Copy the file again, with its index."
            )
            raise ShardFormatError(msg)
        rows = windows_of(file.name, tokens, self.options.window)
        window = self.options.window or 0
        blocks = cut_windows(file, start, rows, window * width)
        warnings = left_out_warnings(file.name, tokens, window)
        return Scanned(blocks, {**schema, "window": window}, warnings)

    def check(self, schema: Mapping[str, Any]) -> None:
        check_columns(self.options.columns, [name for name, _, _ in _columns(schema)])
        if not schema["arrow"]:
            self._chosen(schema)

    def is_mapped(self, schema: Mapping[str, Any]) -> bool:
        return schema["packing"] is None

    def decode(self, file: ShardFile, block: Block, schema: Mapping[str, Any], to: Path) -> None:
        level = schema["packing"]
        if level is None:
            super().decode(file, block, schema, to)
            return
        data = file.read(0, block.size)
        try:
            plain = memoryview(packing.unpack(data, level, block.rows, block.decoded))
        except ValueError as error:
            raise _damaged_packing(file, level, error) from error
        _require_rows(plain, block.rows, end_of_rows(plain, len(plain)), file)
        to.write_bytes(plain)

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        require_whole(data, block)
        if schema["tokens"]:
            return token_rows(data, block.offset, schema["leaves"][0], schema["window"])
        data = data[: block.size]
        end = end_of_rows(data, len(data))
        offsets = row_offsets(data, block.rows, end=end)
        if offsets is None:
            msg = (
                f"The chunk is not the one that was indexed, which had {block.rows:,} rows. Build "
                f"the index again."
            )
            raise ShardChangedError(msg)
        if end != len(data):
            return arrow_rows(data, block.rows, self.options.columns)
        return PlainRows(data, offsets, len(schema["leaves"]), self._chosen(schema))

    def _chosen(self, schema: Mapping[str, Any]) -> list[Column]:
        """Return the chosen columns, with the functions that decode their leaves."""
        chosen = self.options.columns
        columns = {}
        for name, tree, first in _columns(schema):
            if chosen is None or name in chosen:
                kinds = schema["leaves"][first : first + tree.leaves]
                decoders = [
                    leaf_decoder(kind, allow_pickle=self.options.allow_pickle) for kind in kinds
                ]
                columns[name] = Column(name, tree, first, decoders)
        return list(columns.values()) if chosen is None else [columns[name] for name in chosen]


def _columns(schema: Mapping[str, Any]) -> list[tuple[str, Tree, int]]:
    """Return the name, tree and first leaf of each column."""
    tree = parse_tree(schema["tree"])
    if schema["tokens"]:
        return [(TOKENS, tree, 0)]
    first = 0
    columns = []
    for name, child in tree.columns():
        columns.append((name, child, first))
        first += child.leaves
    return columns


def _plain_size(file: ShardFile, head: memoryview, chunk: Chunk, level: str | None) -> int:
    """Return the size of the plain chunk."""
    if level is None:
        return file.size
    try:
        return packing.unpacked_size(file, head, level, chunk.rows) or chunk.size
    except ValueError as error:
        raise _damaged_packing(file, level, error) from error


def _require_rows(head: memoryview, rows: int, end: int, file: ShardFile) -> None:
    """Raise unless a plain chunk begins with the offsets of its rows, the last up to `end`."""
    if row_offsets(head, rows, end=end) is None:
        msg = (
            f"{file.name} does not begin with the offsets of {rows:,} rows, which its index "
            f"announces. It is damaged, or no LitData chunk. Copy the file again."
        )
        raise ShardFormatError(msg)


def _damaged_packing(file: ShardFile, level: str, error: ValueError) -> ShardFormatError:
    return ShardFormatError(
        f"{file.name} cannot be decompressed (zstd by {level}): {error}. Copy the file again."
    )
