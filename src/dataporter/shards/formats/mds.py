"""MDS shards, as mosaicml-streaming writes them: see `index_json`.

A shard is a block. The writer's settings lie between its offsets and its rows, as JSON. A
compressed shard is decoded into the raw one.

Values equal those of streaming's own reader, except images, which stay bytes as they are stored:
`jpeg`, `png`, `pil`, `jpeg_array` and lists of images.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataporter.errors import OptionError, ShardFormatError, ShardSchemaError
from dataporter.shards.formats.compression import decompress, require_known
from dataporter.shards.formats.evidence import evidence, evidence_of_ends, require_whole
from dataporter.shards.formats.format import Format, Rows, check_columns
from dataporter.shards.formats.index_json import (
    Decode,
    ListedFolder,
    StoredColumn,
    StoredRows,
    damaged_index,
    folder_of,
    indexed_offsets,
    not_listed,
    parse_index,
    read_head_and_tail,
    require_offsets,
    require_size,
    size_of_offsets,
)
from dataporter.shards.shard_file import Block, Scanned, ShardFile

_VERSION = 2


class _File(NamedTuple):
    """A file that an index lists."""

    name: str
    size: int
    hashes: dict[str, str]


class _Shard(NamedTuple):
    rows: int
    columns: dict[str, list[Any]]  # name -> encoding, size in bytes or None
    raw: _File
    packed: _File | None  # the compressed file
    compression: str | None


class MdsFormat(Format):
    """Shards of an MDS folder, raw or compressed."""

    name = "mds"

    def scan(self, file: ShardFile) -> Scanned:
        folder, shard, listed = _find(file)
        require_size(file, listed.size, folder)
        algorithm = shard.compression if listed is shard.packed else None
        schema = {
            "columns": shard.columns,
            "order": list(shard.columns),  # of the values in a row
            "compression": algorithm,
        }
        if algorithm is not None:
            require_known(algorithm, file.name)
        if not shard.rows:
            return Scanned((), schema)
        checksum = evidence([json.dumps(listed.hashes, sort_keys=True).encode()])
        if algorithm is None:
            head, tail = read_head_and_tail(file, size_of_offsets(shard.rows))
            require_offsets(head, shard.rows, file.size, file)
            checksum ^= evidence_of_ends(head, tail, file.size)
        return Scanned((Block(0, file.size, shard.rows, shard.raw.size, checksum),), schema)

    def check(self, schema: Mapping[str, Any]) -> None:
        check_columns(self.options.columns, schema["columns"])
        self._columns(schema)

    def is_mapped(self, schema: Mapping[str, Any]) -> bool:
        return schema["compression"] is None

    def decode(self, file: ShardFile, block: Block, schema: Mapping[str, Any], to: Path) -> None:
        file.expect([(0, block.size)])  # while the index is looked for
        _, shard, listed = _find(file)
        data = file.read(0, block.size)
        _check_hashes(data, listed, file)
        if schema["compression"] is not None:
            raw = decompress(data, schema["compression"], file.name, block.decoded)
            _check_hashes(raw, shard.raw, file)
            data = memoryview(raw)
        require_offsets(data, block.rows, len(data), file)
        to.write_bytes(data)

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        require_whole(data, block)
        offsets = indexed_offsets(data, block.rows, block.size)
        sizes = [schema["columns"][name][1] for name in schema["order"]]
        return StoredRows(data, offsets, sizes, self._columns(schema))

    def _columns(self, schema: Mapping[str, Any]) -> list[StoredColumn]:
        """Return the selected columns."""
        places = {name: place for place, name in enumerate(schema["order"])}
        columns = []
        for name in schema["order"] if self.options.columns is None else self.options.columns:
            encoding = schema["columns"][name][0]
            decode = _decoder(encoding, name, allow_pickle=self.options.allow_pickle)
            columns.append(StoredColumn(name, places[name], [decode]))
        return columns


@functools.lru_cache(maxsize=16)
def _files(folder: ListedFolder) -> dict[str, tuple[_Shard, _File]]:
    """Return the raw and compressed files of an index by name, each with its shard."""
    index = parse_index(folder)
    if index.get("version") != _VERSION:
        raise damaged_index(folder, f"has version {index.get('version')!r}", f"{_VERSION} of MDS")
    listed = index.get("shards")
    if not isinstance(listed, list):
        raise damaged_index(folder, "has no list of shards", "the index of an MDS folder")
    files: dict[str, tuple[_Shard, _File]] = {}
    for number, entry in enumerate(listed):
        try:
            shard = _parse_shard(entry)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = f"has a damaged entry for shard {number:,} ({type(error).__name__}: {error})"
            raise damaged_index(folder, found, f"a shard in version {_VERSION} of MDS") from error
        files |= {file.name: (shard, file) for file in (shard.raw, shard.packed) if file}
    return files


def _parse_shard(entry: dict[str, Any]) -> _Shard:
    if (entry["format"], entry["version"]) != ("mds", _VERSION):
        found = f"its format is {entry['format']!r}, version {entry['version']!r}"
        raise ValueError(found)
    packed = entry.get("zip_data")
    columns = zip(
        entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True
    )
    return _Shard(
        rows=int(entry["samples"]),
        columns={name: [encoding, size] for name, encoding, size in columns},
        raw=_parse_file(entry["raw_data"]),
        packed=_parse_file(packed) if packed else None,
        compression=entry["compression"].split(":")[0] if packed else None,
    )


def _parse_file(entry: dict[str, Any]) -> _File:
    return _File(entry["basename"], int(entry["bytes"]), entry.get("hashes") or {})


def _find(file: ShardFile) -> tuple[ListedFolder, _Shard, _File]:
    folder, name = folder_of(file)
    if name not in _files(folder):
        raise not_listed(file, folder)
    return folder, *_files(folder)[name]


def _check_hashes(data: bytes | memoryview, listed: _File, file: ShardFile) -> None:
    """Compare a file with the hashes in its index, as far as Python has their algorithms."""
    for algorithm, expected in listed.hashes.items():
        if algorithm in hashlib.algorithms_available and not algorithm.startswith("shake"):
            found = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
            if found != expected:
                msg = (
                    f"{file.name} is damaged: the {algorithm} of {listed.name} is {found}, but "
                    f"its index has {expected}. Copy the file again."
                )
                raise ShardFormatError(msg)


def _decoder(encoding: str, column: str, *, allow_pickle: bool) -> Decode:
    """Choose the function that decodes values of an encoding."""
    if encoding == "pkl" and not allow_pickle:
        msg = (
            f"Values of {column!r} are pickles, which can run any code when they are read. Pass "
            f"allow_pickle=True if you trust the files, or leave {column!r} out of columns."
        )
        raise OptionError(msg)
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        return _array_decoder(rest)
    if encoding not in _DECODERS:
        msg = (
            f"Column {column!r} has the encoding {encoding!r}, which is unknown. Leave it out of "
            f"columns, or write the dataset again with one of {sorted(_DECODERS)}."
        )
        raise ShardSchemaError(msg)
    return _DECODERS[encoding]


def _array_decoder(description: str) -> Decode:
    """Decode arrays, whose dtype and shape are those of the column or precede the values."""
    dtype_name, _, dimensions = description.partition(":")
    fixed_dtype = np.dtype(dtype_name) if dtype_name else None
    fixed_shape = tuple(map(int, dimensions.split(","))) if dimensions else None

    def decode(value: memoryview) -> Any:
        at = 0
        dtype, shape = fixed_dtype, fixed_shape
        if dtype is None:
            dtype = np.dtype(_ARRAY_DTYPES[value[at]])
            at += 1
        if shape is None:
            dimensions, size = value[at] >> 2, 1 << (value[at] & 3)
            at += 1
            shape = tuple(np.frombuffer(value, f"<u{size}", dimensions, at).tolist())
            at += dimensions * size
        return np.frombuffer(value, dtype, offset=at).reshape(shape).copy()

    return decode


def _scalar_decoder(dtype: Any) -> Decode:
    def decode(value: memoryview) -> Any:
        (number,) = np.frombuffer(value, dtype)
        return number

    return decode


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _int(value: memoryview) -> int:
    return int.from_bytes(value, "little", signed=True)


def _decimal(value: memoryview) -> Decimal:
    return Decimal(str(value, "utf-8"))


def _json(value: memoryview) -> Any:
    return json.loads(bytes(value))


# The number that stands for the dtype of an array: its bits, and one or two more.
_ARRAY_DTYPES = {
    bits + more: f"{kind}{bits}"
    for bits in (8, 16, 32, 64)
    for more, kind in enumerate(("uint", "int", "float"))
    if (bits, kind) != (8, "float")
}
_IMAGES = ("jpeg", "png", "pil", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
_DECODERS: dict[str, Decode] = {
    "bytes": bytes,
    "str": _text,
    "int": _int,
    **{name: _scalar_decoder(np.dtype(name)) for name in _ARRAY_DTYPES.values()},
    "str_int": int,
    "str_float": float,
    "str_decimal": _decimal,
    "json": _json,
    "pkl": pickle.loads,
    **dict.fromkeys(_IMAGES, bytes),
}
