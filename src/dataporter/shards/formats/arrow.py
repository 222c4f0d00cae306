"""Arrow IPC files: Hugging Face's `save_to_disk`, Feather, files and streams of pyarrow.

Uncompressed files are mapped as they lie; a block is a run of record batches. A file with
dictionaries is one block, since a record batch cannot be read without them. Compressed files are
decoded into uncompressed ones, runs of uncompressed files elsewhere into streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from dataporter.errors import ShardChangedError, ShardFormatError
from dataporter.shards.formats.arrow_messages import (
    BATCH,
    DICTIONARY,
    END,
    MAGIC,
    BrokenMessageError,
    Message,
    read_headers,
    read_schema,
)
from dataporter.shards.formats.columns import ArrowRows, describe
from dataporter.shards.formats.evidence import damaged, evidence, require_whole
from dataporter.shards.formats.format import Format, ReadOptions, Rows, check_columns
from dataporter.shards.shard_file import Block, Scanned, ShardFile

TARGET = 8 << 20  # bytes of a block
LARGE = 256 << 20  # bytes of a block that is worth a warning
EXPECTED = "an Arrow IPC file or stream"


class ArrowFormat(Format):
    """Arrow IPC, the file and the stream format."""

    name = "arrow"

    def scan(self, file: ShardFile) -> Scanned:
        messages, columns = _read_headers(file)
        batches = [message for message in messages if message.kind == BATCH]
        is_compressed = any(batch.is_compressed for batch in batches)
        warnings = []
        if any(message.kind == DICTIONARY for message in messages):
            runs = [messages]
            blocks = [_whole_file(file, messages, batches)]
            if blocks[0].decoded > LARGE:
                warnings.append(
                    f"{file.name} is one block of {blocks[0].decoded >> 20} MiB, since its columns "
                    "are encoded by dictionaries. Decode them by pyarrow's `dictionary_decode`, "
                    "and write the file again."
                )
        else:
            runs = list(_runs(batches))
            blocks = [_block(run, is_compressed=is_compressed) for run in runs]
            for batch in batches:
                if batch.decoded > LARGE:
                    warnings.append(
                        f"{file.name} has a record batch of {batch.decoded >> 20} MiB, which is "
                        "one block. Write it again in smaller batches, as by `max_chunksize`."
                    )
                    break
        schema: dict[str, Any] = {"columns": columns}
        if is_compressed:
            schema["compressed"] = True
        return Scanned(tuple(block for block in blocks if block.rows), schema, tuple(warnings))

    def check(self, schema: Mapping[str, Any]) -> None:
        check_columns(self.options.columns, schema["columns"])

    def is_mapped(self, schema: Mapping[str, Any]) -> bool:
        return not schema.get("compressed", False)

    def shared_part(self, begin: int, end: int, size: int) -> tuple[int, int] | None:
        del end, size
        return (0, begin) if begin else None  # the schema

    def decode(self, file: ShardFile, block: Block, schema: Mapping[str, Any], to: Path) -> None:
        if not self.is_mapped(schema):
            write_decoded(file.name, _decompressed(file, block), self.options, to)
        elif block.offset == 0:  # a whole file
            super().decode(file, block, schema, to)
        else:
            head = _read_schema(file).serialize()
            with to.open("wb") as stream:
                stream.writelines([head, file.read(block.offset, block.size), END])

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        del schema
        return open_batches(data, block, self.options)


def open_batches(data: memoryview, block: Block, options: ReadOptions) -> Rows:
    """Open the rows of a block of an Arrow file, or of a whole one, without copying them."""
    batches = _batches(data, block)
    with _damage_in(block):
        return ArrowRows(batches, options.columns)


def write_decoded(
    name: str, batches: Sequence[pa.RecordBatch], options: ReadOptions, to: Path
) -> None:
    """Write the selected columns as an uncompressed Arrow file, which `open_batches` opens."""
    try:
        batches = [_plain(batch, options.columns) for batch in batches]
        with pa.OSFile(str(to), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except (pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        msg = (
            f"A block cannot be decoded: {name}. Found damaged data, or dictionaries inside of "
            f"other columns: {error}. Download it again, or write it without such dictionaries."
        )
        raise ShardFormatError(msg) from error


def _plain(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    """Return the selected columns; those of dictionaries and views become plain ones."""
    names = batch.schema.names if columns is None else list(dict.fromkeys(columns))
    fields, arrays = [], []
    for name in names:
        array = _plain_array(batch.column(name))
        fields.append(batch.schema.field(name).with_type(array.type))
        arrays.append(array)
    # A batch without columns keeps its number of rows only as a selection.
    schema = pa.schema(fields, batch.schema.metadata)
    return pa.record_batch(arrays, schema=schema) if arrays else batch.select([])


def _plain_array(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        values = _plain_array(array.dictionary)  # pyarrow cannot decode a dictionary of views
        return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    wide = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return array.cast(wide[array.type]) if array.type in wide else array


def _read_headers(file: ShardFile) -> tuple[list[Message], dict[str, str]]:
    """Read the headers of all messages, and the columns."""
    with _damage_of(file):
        schema, messages = read_headers(file)
    return messages, describe(_parsed(schema, file), file.name)


def _read_schema(file: ShardFile) -> pa.Schema:
    with _damage_of(file):
        raw = read_schema(file)
    return _parsed(raw, file)


@contextmanager
def _damage_of(file: ShardFile) -> Iterator[None]:
    try:
        yield
    except BrokenMessageError as error:
        raise damaged(file, EXPECTED, str(error)) from error


def _parsed(schema: bytes, file: ShardFile) -> pa.Schema:
    try:
        return _schema(pa.py_buffer(schema))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(file, EXPECTED, f"its schema cannot be read: {error}") from error


def _runs(batches: Sequence[Message]) -> Iterator[list[Message]]:
    """Group record batches that lie side by side into runs of about TARGET bytes."""
    run: list[Message] = []
    end = size = 0
    for batch in batches:
        if run and (batch.offset != end or size + batch.decoded > TARGET):
            yield run
            run, size = [], 0
        run.append(batch)
        end, size = batch.offset + batch.size, size + batch.decoded
    if run:
        yield run


def _block(run: Sequence[Message], *, is_compressed: bool) -> Block:
    size = run[-1].offset + run[-1].size - run[0].offset
    return Block(
        run[0].offset,
        size,
        sum(batch.rows for batch in run),
        sum(batch.decoded for batch in run) if is_compressed else size,
        evidence(batch.header for batch in run),
    )


def _whole_file(file: ShardFile, messages: Sequence[Message], batches: Sequence[Message]) -> Block:
    return Block(
        0,
        file.size,
        sum(batch.rows for batch in batches),
        max(file.size, sum(message.decoded for message in messages)),
        evidence(message.header for message in messages),
    )


def _decompressed(file: ShardFile, block: Block) -> list[pa.RecordBatch]:
    schema = _read_schema(file) if block.offset else None
    data = pa.py_buffer(file.read(block.offset, block.size))
    with _damage_in(block):
        batches = _all_batches(data) if schema is None else _batches_of_run(data, schema)
    _check(batches, block, full=True)  # pyarrow may crash on values that are not checked
    return batches


def _batches(data: memoryview, block: Block) -> list[pa.RecordBatch]:
    """Read the record batches of a block. A block at offset 0 is a whole file."""
    require_whole(data, block)
    file = pa.py_buffer(data)
    with _damage_in(block):
        if block.offset == 0:
            batches = _all_batches(file)
        else:
            run = file[block.offset : block.offset + block.size]
            batches = _batches_of_run(run, _schema(file))
    _check(batches, block)
    return batches


def _check(batches: Sequence[pa.RecordBatch], block: Block, *, full: bool = False) -> None:
    """Raise unless record batches are valid and have a block's rows; `full` checks all values."""
    with _damage_in(block):
        for batch in batches:
            batch.validate(full=full)
    rows = sum(batch.num_rows for batch in batches)
    if rows != block.rows:
        msg = (
            f"The file has changed since it was indexed: the block at byte {block.offset} has "
            f"{rows} rows, expected {block.rows}. Restore the file, or build the index again."
        )
        raise ShardChangedError(msg)


@contextmanager
def _damage_in(block: Block) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, EOFError, KeyError, OSError, UnicodeDecodeError) as error:
        msg = (
            f"Arrow data is damaged in bytes {block.offset} to {block.offset + block.size}: "
            f"{error}. Download or write the file again."
        )
        raise ShardFormatError(msg) from error


def _schema(file: pa.Buffer) -> pa.Schema:
    return pa.ipc.open_file(file).schema if _has_footer(file) else pa.ipc.read_schema(file)


def _all_batches(file: pa.Buffer) -> list[pa.RecordBatch]:
    if not _has_footer(file):
        return list(pa.ipc.open_stream(file))
    reader = pa.ipc.open_file(file)
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]


def _has_footer(file: pa.Buffer) -> bool:
    """Return True for the file format, False for a stream."""
    return bool(file[: len(MAGIC)].to_pybytes() == MAGIC)


def _batches_of_run(run: pa.Buffer, schema: pa.Schema) -> list[pa.RecordBatch]:
    reader = pa.BufferReader(run)
    batches = []
    while reader.tell() < run.size:
        batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(reader), schema))
    return batches
