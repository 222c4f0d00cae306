"""LitData chunks, as `litdata.optimize` writes them: see `index_json`.

A chunk is a block. The index says how each leaf is stored and which tree the leaves form. Newer
versions of LitData append the rows of plain data as an Arrow file; such rows are read from there,
as LitData does. Chunks for its TokensLoader have windows of `window` tokens, in the column
"tokens", and are cut into blocks of about 8 MiB.

LitData has three ways to compress a chunk, each undone into the plain chunk. "chunk" is one zstd
frame for the file. "batch" has a table of frames, each of many rows:

    "LDFZ01" 0 0 | version: u16 | flags: u16 | rows: u32 | rows of a frame: u32 | frames: u32
    offset of each row, and of the end: u32 | frames, each: first row: u32, rows: u32,
    offset: u64, size: u32, size when decompressed: u32 | the frames

"sample" has a frame for each row, between the offsets of a plain chunk.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataporter.errors import OptionError, ShardFormatError
from dataporter.shards.formats.compression import decompress_zstd, require_zstandard
from dataporter.shards.formats.evidence import evidence_of_ends, require_whole
from dataporter.shards.formats.format import Format, Rows, check_columns
from dataporter.shards.formats.index_json import (
    ListedFolder,
    StoredRows,
    damaged_index,
    folder_of,
    head_of,
    indexed_offsets,
    not_listed,
    parse_index,
    read_head_and_tail,
    require_offsets,
    require_size,
    row_offsets,
    size_of_offsets,
)
from dataporter.shards.formats.litdata_rows import (
    arrow_rows,
    end_of_rows,
    plain_columns,
    token_rows,
    token_width,
    trees_of_columns,
)
from dataporter.shards.formats.tokens import cut_windows, left_out_warnings, windows_of
from dataporter.shards.shard_file import Block, Scanned, ShardFile

_LEVELS = ("chunk", "batch", "sample")
_MAGIC = b"LDFZ01\0\0"
_PREFIX = struct.Struct("<8sHHIII")
_FRAME = struct.Struct("<IIQII")
_LONGEST_FRAME_HEAD = 18  # bytes
_LARGEST = 2**32  # bytes of a chunk, whose offsets have 32 bits


class LitDataFormat(Format):
    """Chunks of a LitData folder."""

    name = "litdata"
    scan_options = ("window",)

    def scan(self, file: ShardFile) -> Scanned:
        folder, name = folder_of(file)
        chunks, layout = _index(folder)
        if name not in chunks:
            raise not_listed(file, folder)
        chunk, schema = chunks[name], {**layout}
        if not file.size:
            msg = f"{file.name} is empty, but {folder.index} lists rows for it. Copy it again."
            raise ShardFormatError(msg)
        packing = schema["packing"]
        if packing != "chunk":  # the index has no size for a file compressed as a whole
            require_size(file, chunk.size, folder)
        if schema["tokens"]:
            return self._scan_tokens(file, chunk, schema)
        head, tail = read_head_and_tail(file, _size_of_head(packing, chunk.rows))
        decoded = file.size
        if packing is None:
            end = end_of_rows(tail, file.size)
            require_offsets(head, chunk.rows, end, file)
            schema["arrow"] = end != file.size
        else:
            try:
                decoded = _unpacked_size(file, head, packing, chunk)
            except ValueError as error:
                raise _damaged_packing(file, packing, error) from error
        checksum = evidence_of_ends(head, tail, file.size)
        return Scanned((Block(0, file.size, chunk.rows, decoded, checksum),), schema)

    def _scan_tokens(self, file: ShardFile, chunk: _Chunk, schema: dict[str, Any]) -> Scanned:
        if schema["packing"] is not None:
            msg = (
                f"{file.name} has compressed tokens, which cannot be read. Write the dataset again "
                f"without compression."
            )
            raise OptionError(msg)
        start = size_of_offsets(chunk.rows)
        require_offsets(file.read(0, start), chunk.rows, file.size, file)
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
        check_columns(self.options.columns, trees_of_columns(schema))
        if not schema["arrow"]:
            plain_columns(schema, self.options)

    def is_mapped(self, schema: Mapping[str, Any]) -> bool:
        return schema["packing"] is None

    def decode(self, file: ShardFile, block: Block, schema: Mapping[str, Any], to: Path) -> None:
        packing = schema["packing"]
        if packing is None:
            super().decode(file, block, schema, to)
            return
        data = file.read(0, block.size)
        try:
            plain = memoryview(_unpacked(data, packing, block.rows, block.decoded))
        except ValueError as error:
            raise _damaged_packing(file, packing, error) from error
        require_offsets(plain, block.rows, end_of_rows(plain, len(plain)), file)
        to.write_bytes(plain)

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        require_whole(data, block)
        if schema["tokens"]:
            return token_rows(data, block.offset, schema["leaves"][0], schema["window"])
        data = data[: block.size]
        end = end_of_rows(data, len(data))
        offsets = indexed_offsets(data, block.rows, end)
        if end != len(data):
            return arrow_rows(data, block.rows, self.options.columns)
        sizes = [None] * len(schema["leaves"])
        return StoredRows(data, offsets, sizes, plain_columns(schema, self.options))


class _Chunk(NamedTuple):
    """A chunk, as the index lists it."""

    rows: int
    size: int  # of the file; of the plain chunk if the whole file is compressed
    tokens: int | None


@functools.lru_cache(maxsize=16)
def _index(folder: ListedFolder) -> tuple[dict[str, _Chunk], dict[str, Any]]:
    """Return the chunks of a folder, and the schema of their rows. Raise if they are unreadable."""
    index = parse_index(folder)
    chunks, config = index.get("chunks"), index.get("config")
    if not isinstance(chunks, list) or not isinstance(config, dict):
        raise damaged_index(folder, "has no chunks and config", "the index of a LitData folder")
    _require_readable(folder, config)
    try:
        listed = {
            chunk["filename"]: _Chunk(
                int(chunk["chunk_size"]), int(chunk["chunk_bytes"]), chunk.get("dim")
            )
            for chunk in chunks
        }
        return listed, _schema(config)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        found = f"is damaged ({type(error).__name__}: {error})"
        raise damaged_index(folder, found, "the index of a LitData folder") from error


def _schema(config: Mapping[str, Any]) -> dict[str, Any]:
    leaves = config["data_format"]
    level = (config.get("compression_level") or "chunk") if config.get("compression") else None
    if level is not None and level not in _LEVELS:
        msg = f"compression_level {level!r} is unknown"
        raise ValueError(msg)
    flat = len(leaves) == 1 and leaves[0].startswith("no_header_")
    loader = config.get("item_loader")
    # Indices without a loader come from versions that knew no other for a single flat tensor.
    tokens = loader == "TokensLoader" or (loader is None and flat)
    if tokens and not flat:
        msg = f"TokensLoader needs one flat tensor or array, not {leaves}"
        raise ValueError(msg)
    schema = {
        "leaves": leaves,  # the format of each
        "tree": config["data_spec"],  # that the leaves form
        "packing": level,
        "tokens": tokens,  # whether rows are tokens end to end
        "arrow": False,  # whether the rows are in an Arrow file
    }
    trees = trees_of_columns(schema)
    if sum(tree.leaves for tree, _ in trees.values()) != len(leaves):
        msg = f"data_spec does not have the {len(leaves)} leaves of data_format"
        raise ValueError(msg)
    schema["columns"] = {
        name: leaves[first : first + tree.leaves] for name, (tree, first) in trees.items()
    }
    return schema


def _require_readable(folder: ListedFolder, config: Mapping[str, Any]) -> None:
    loader = config.get("item_loader")
    compression = str(config.get("compression") or "zstd")
    if loader == "ParquetLoader":
        msg = "lists Parquet files. Read them with format='parquet'."
    elif loader not in {None, "PyTreeLoader", "TokensLoader"}:
        msg = f"needs LitData's {loader}, which is unknown. Write the data without item_loader."
    elif config.get("encryption"):
        msg = "lists encrypted chunks, which cannot be read. Write the data without encryption."
    elif compression.split(":", maxsplit=1)[0] != "zstd":
        msg = f"lists chunks compressed with {compression!r}. Write the data with 'zstd'."
    else:
        return
    msg = f"{folder.index} {msg}"
    raise OptionError(msg)


def _size_of_head(packing: str | None, rows: int) -> int:
    """Return the size of the offsets, or of the table of frames, that a chunk begins with."""
    if packing == "batch":
        return _PREFIX.size + 4 * (rows + 1) + _FRAME.size * rows  # a frame has a row or more
    return 0 if packing == "chunk" else size_of_offsets(rows)


def _unpacked_size(file: ShardFile, head: memoryview, packing: str, chunk: _Chunk) -> int:
    """Return the size of the plain chunk."""
    rows = chunk.rows
    if packing == "chunk":
        return chunk.size
    if packing == "batch":
        sizes, _ = _frame_table(head, rows, file.size)
        return size_of_offsets(rows) + sum(sizes)
    frames = _frames_of_rows(head, rows, file.size)
    heads = [(begin, min(begin + _LONGEST_FRAME_HEAD, end)) for begin, end in frames]
    file.expect(heads)
    sizes = [_content_size(file.read(begin, end - begin)) for begin, end in heads]
    return size_of_offsets(rows) + sum(sizes)


def _unpacked(data: memoryview, packing: str, rows: int, size: int) -> bytes:
    """Return the plain chunk. A ValueError says what is wrong with the packed one."""
    if packing == "chunk":
        return _decompressed(data, size)
    if packing == "batch":
        sizes, frames = _frame_table(data, rows, len(data))
        bodies = [_decompressed(data[at : at + packed], plain) for at, packed, plain in frames]
        return head_of(sizes) + b"".join(bodies)
    parts = [
        _decompressed(data[begin:end], _content_size(data[begin:end]))
        for begin, end in _frames_of_rows(data, rows, len(data))
    ]
    return head_of([len(part) for part in parts]) + b"".join(parts)


def _frames_of_rows(head: memoryview, rows: int, size: int) -> list[tuple[int, int]]:
    """Return the first byte and the end of each row's frame."""
    offsets = row_offsets(head, rows, size)
    if offsets is None:
        msg = f"it does not begin with the offsets of {rows:,} rows"
        raise ValueError(msg)
    return list(pairwise(offsets))


def _frame_table(
    data: memoryview, rows: int, file_size: int
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the size of each row, and of each frame its offset, size and plain size.

    `data` begins with the table, and may end before the file does.
    """
    if len(data) < _PREFIX.size or data[: len(_MAGIC)] != _MAGIC:
        msg = "it does not begin with LDFZ01"
        raise ValueError(msg)
    _, version, _, found, _, number = _PREFIX.unpack_from(data)
    if (version, found) != (1, rows):
        msg = f"it has version {version} and {found:,} rows instead of version 1 and {rows:,} rows"
        raise ValueError(msg)
    table = _PREFIX.size + 4 * (rows + 1)
    if len(data) < table + number * _FRAME.size:
        msg = "its table of frames is cut off"
        raise ValueError(msg)
    offsets = np.frombuffer(data[_PREFIX.size : table], "<u4").astype(np.int64)
    sizes: list[int] = np.diff(offsets).tolist()
    frames = []
    counted = 0
    for i in range(number):
        first, count, at, packed, plain = _FRAME.unpack_from(data, table + i * _FRAME.size)
        expected = sum(sizes[first : first + count])
        if first != counted or plain != expected or at + packed > file_size:
            msg = f"frame {i:,} of its table is damaged or cut off"
            raise ValueError(msg)
        counted += count
        frames.append((at, packed, plain))
    if counted != rows or offsets[0] or min(sizes) < 0:
        msg = f"its table has frames for {counted:,} of {rows:,} rows"
        raise ValueError(msg)
    return sizes, frames


def _content_size(frame: memoryview) -> int:
    zstandard = require_zstandard()
    try:
        size = int(zstandard.get_frame_parameters(frame[:_LONGEST_FRAME_HEAD]).content_size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if size > _LARGEST:
        msg = f"a frame announces {size:,} bytes, or does not say how many it has"
        raise ValueError(msg)
    return size


def _decompressed(frame: memoryview, size: int) -> bytes:
    plain = decompress_zstd(frame, size)
    if len(plain) != size:
        msg = f"a frame has {len(plain):,} bytes instead of {size:,}"
        raise ValueError(msg)
    return plain


def _damaged_packing(file: ShardFile, packing: str, error: ValueError) -> ShardFormatError:
    return ShardFormatError(
        f"{file.name} cannot be decompressed (zstd by {packing}): {error}. Copy the file again."
    )
