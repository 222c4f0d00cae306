"""MDS shards, as mosaicml-streaming writes them.

A shard is a block. Its raw file is

    rows: u32 | offset of each row and of the end: u32 | the writer's settings: JSON | rows

and a row is the sizes of its columns that vary in size, then the values. A compressed shard is
decoded into the raw file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dataporter.errors import ShardChangedError, ShardFormatError
from dataporter.shards.blocks import Block, Scanned
from dataporter.shards.formats.compression import decompress, require_known
from dataporter.shards.formats.evidence import (
    PROBE,
    ends,
    evidence,
    evidence_of_ends,
    read_ends,
    require_whole,
)
from dataporter.shards.formats.format import Format, Rows, Sample, check_columns
from dataporter.shards.formats.index_json import (
    ListedFolder,
    damaged_index,
    folder_of,
    not_listed,
    parse_index,
    require_size,
    row_offsets,
    size_of_head,
)
from dataporter.shards.formats.mds_encodings import Decode, decoder
from dataporter.shards.shard_file import ShardFile

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
            checksum ^= _check_raw(file, shard.rows)
        return Scanned((Block(0, file.size, shard.rows, shard.raw.size, checksum),), schema)

    def check(self, schema: Mapping[str, Any]) -> None:
        known = {name: encoding for name, (encoding, _) in schema["columns"].items()}
        check_columns(self.options.columns, known)
        for name in known if self.options.columns is None else self.options.columns:
            decoder(known[name], name, allow_pickle=self.options.allow_pickle)

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
        if row_offsets(data, block.rows) is None:
            raise _no_shard(file, block.rows)
        to.write_bytes(data)

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        require_whole(data, block)
        data = data[: block.size]
        offsets = row_offsets(data, block.rows)
        if offsets is None:
            msg = (
                f"The shard is not the one that was indexed, which had {block.rows:,} rows. Build "
                f"the index again."
            )
            raise ShardChangedError(msg)
        chosen = self.options.columns
        layout: list[tuple[str, int | None, Decode | None]] = []
        for name in schema["order"]:
            encoding, size = schema["columns"][name]
            decode = None
            if chosen is None or name in chosen:
                decode = decoder(encoding, name, allow_pickle=self.options.allow_pickle)
            layout.append((name, size, decode))
        return _ShardRows(data, offsets, layout, chosen)


class _ShardRows:
    """The rows of a shard."""

    def __init__(
        self,
        data: memoryview,
        offsets: list[int],
        layout: list[tuple[str, int | None, Decode | None]],
        chosen: tuple[str, ...] | None,
    ) -> None:
        self._data = data
        self._offsets = offsets
        self._layout = layout
        self._names = [name for name, _, _ in layout] if chosen is None else chosen
        self._sizes = struct.Struct("<" + "I" * sum(not size for _, size, _ in layout))

    def __call__(self, numbers: Sequence[int]) -> list[Sample]:
        return [self._read(number) for number in numbers]

    def _read(self, number: int) -> Sample:
        begin, end = self._offsets[number], self._offsets[number + 1]
        at = begin + self._sizes.size
        if at > end:
            raise _damaged(number, "is too short for the sizes of its columns")
        sizes = iter(self._sizes.unpack_from(self._data, begin))
        values: Sample = dict.fromkeys(self._names)
        for name, fixed_size, decode in self._layout:
            after = at + (fixed_size or next(sizes))
            if after > end:
                raise _damaged(number, f"is too short for its column {name!r}")
            if decode is not None:
                value = bytes(self._data[at:after])
                try:
                    values[name] = decode(value)
                except Exception as error:
                    found = f"has a damaged column {name!r} ({type(error).__name__}: {error})"
                    raise _damaged(number, found) from error
            at = after
        if at != end:
            raise _damaged(number, f"has {end - at:,} bytes after its last column")
        return values


@functools.lru_cache(maxsize=16)
def _shards(folder: ListedFolder) -> list[_Shard]:
    index = parse_index(folder)
    if index.get("version") != _VERSION:
        raise damaged_index(folder, f"has version {index.get('version')!r}", f"{_VERSION} of MDS")
    listed = index.get("shards")
    if not isinstance(listed, list):
        raise damaged_index(folder, "has no list of shards", "the index of an MDS folder")
    shards = []
    for number, entry in enumerate(listed):
        try:
            shards.append(_parse_shard(entry))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = f"has a damaged entry for shard {number:,} ({type(error).__name__}: {error})"
            raise damaged_index(folder, found, f"a shard in version {_VERSION} of MDS") from error
    return shards


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


@functools.lru_cache(maxsize=16)
def _by_name(folder: ListedFolder) -> dict[str, tuple[_Shard, _File]]:
    return {
        file.name: (shard, file)
        for shard in _shards(folder)
        for file in (shard.raw, shard.packed)
        if file is not None
    }


def _find(file: ShardFile) -> tuple[ListedFolder, _Shard, _File]:
    folder, name = folder_of(file)
    if name not in _by_name(folder):
        raise not_listed(file, folder)
    return folder, *_by_name(folder)[name]


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


def _check_raw(file: ShardFile, rows: int) -> int:
    """Raise unless a raw file begins with the offsets of its rows; return its evidence."""
    longest = max(size_of_head(rows), PROBE)
    file.expect(ends(0, file.size, longest))
    head, tail = read_ends(file, 0, file.size, longest)
    if row_offsets(head, rows, end=file.size) is None:
        raise _no_shard(file, rows)
    return evidence_of_ends(head, tail, file.size)


def _no_shard(file: ShardFile, rows: int) -> ShardFormatError:
    return ShardFormatError(
        f"{file.name} does not begin with the offsets of {rows:,} rows, which its index announces. "
        f"It is damaged, or no MDS shard. Copy the file again."
    )


def _damaged(row: int, found: str) -> ShardFormatError:
    return ShardFormatError(f"Row {row:,} of the shard {found}. Copy the file again.")
