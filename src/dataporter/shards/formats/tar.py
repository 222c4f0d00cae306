"""WebDataset tar files: members with the same key, next to each other, are a sample.

The key of a member is its path up to the first dot of its base name; what follows, in lower
case, is its extension, and so its column. Grouping and decoding equal webdataset's `.decode()`:

    txt text transcript                 str
    cls cls2 index inx id               int
    json jsn                            the parsed JSON
    npy, npz                            an array, a dict of arrays
    pyd pickle pkl                      the object, with `allow_pickle`
    EXT.gz                              as EXT, decompressed

Every other value stays bytes: jpg, png, mp4 and the rest.

Blocks are slices of about 2 MiB, cut between samples. An index is built from headers alone.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dataporter.errors import OptionError, ShardChangedError, ShardFormatError, ShardSchemaError
from dataporter.shards.blocks import Block, Scanned
from dataporter.shards.formats.evidence import evidence, require_whole
from dataporter.shards.formats.format import Format, Rows, Sample, check_columns
from dataporter.shards.formats.tar_headers import UNIT, Member, Members, Read
from dataporter.shards.shard_file import ShardFile

KEY = "__key__"
_BLOCK_BYTES = 2 << 20  # few members, whose headers are read when a block is opened
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # webdataset's
_META = re.compile(r"__[^/]*__($|/)")  # names that webdataset skips
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
}

_Decode = Callable[[bytes], Any]


class _Sample(NamedTuple):
    key: str
    parts: dict[str, tuple[int, int]]  # extension -> first byte and end of its body
    start: int  # of its first header
    crcs: list[int]  # of the headers of its members


class TarFormat(Format):
    """Tar files as webdataset writes them, not compressed."""

    name = "tar"
    scan_options = ("columns",)  # every sample must have them
    fixes_schema = False  # samples need not have the same extensions

    def scan(self, file: ShardFile) -> Scanned:
        if not file.size:
            msg = f"{file.name} is empty, not even an end marker is there. Write the file again."
            raise ShardFormatError(msg)
        with file.open() as opened:
            _refuse_compressed(file.name, opened.read(6))

            def read(offset: int, size: int) -> bytes:
                opened.seek(offset)  # over the bodies, which stay unread
                return opened.read(size)

            try:
                return self._scan(file, read)
            except ShardFormatError as error:
                msg = f"{file.name} {error}"
                raise ShardFormatError(msg) from None

    def _scan(self, file: ShardFile, read: Read) -> Scanned:
        blocks: list[Block] = []
        seen: dict[str, int] = {}
        extensions: set[str] = set()
        begin = 0
        crcs: list[int] = []
        rows = 0
        found = Members(read, file.size, 0, file.size)
        for sample in _samples(found):
            if sample.key in seen:
                msg = (
                    f"has the key {sample.key!r} in two places, at offsets "
                    f"{seen[sample.key]:,} and {sample.start:,}. Members of a sample must be next "
                    f"to each other: write it again, sorted by name (tar --sort=name)."
                )
                raise ShardFormatError(msg)
            self._require_columns(sample, f"{file.name}: ")
            if rows and sample.start - begin >= _BLOCK_BYTES:
                blocks.append(_block(begin, sample.start, rows, crcs))
                begin, rows, crcs = sample.start, 0, []
            seen[sample.key] = sample.start
            extensions.update(sample.parts)
            crcs += sample.crcs
            rows += 1
        _require_end(read, file.size, found.end)
        if rows:
            blocks.append(_block(begin, found.end, rows, crcs))
        warnings = () if blocks else (f"{file.name} has no samples. Leave it out.",)
        return Scanned(tuple(blocks), {"extensions": sorted(extensions)}, warnings)

    def check(self, schema: Mapping[str, Any]) -> None:
        known = schema["extensions"]
        chosen = self.options.columns
        if known:
            check_columns(chosen, [*known, KEY])
        for extension in known if chosen is None else chosen:
            _decoder(extension, allow_pickle=self.options.allow_pickle)

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        require_whole(data, block)
        end = block.offset + block.size

        def read_part(offset: int, size: int) -> bytes:
            return bytes(data[offset : offset + size])

        found = Members(read_part, len(data), block.offset, end)
        samples = list(_samples(found))
        if len(samples) != block.rows or found.end != end:
            msg = (
                f"The block at offset {block.offset:,} has {len(samples):,} samples, but "
                f"{block.rows:,} were indexed. The file was changed: build the index again."
            )
            raise ShardChangedError(msg)
        columns = self.options.columns
        known = schema["extensions"] if columns is None else columns
        decoders = {
            name: _decoder(name, allow_pickle=self.options.allow_pickle)
            for name in known
            if name != KEY
        }

        def rows(numbers: Sequence[int]) -> list[Sample]:
            return [read(samples[number]) for number in numbers]

        def read(sample: _Sample) -> Sample:
            self._require_columns(sample, "")
            values: Sample = {KEY: sample.key}
            for extension in sample.parts if columns is None else decoders:
                begin, end = sample.parts[extension]
                value = bytes(data[begin:end])
                decode = decoders[extension]
                if decode is not None:
                    value = _decoded(decode, value, sample, extension)
                values[extension] = value
            return values

        return rows

    def _require_columns(self, sample: _Sample, where: str) -> None:
        for name in self.options.columns or ():
            if name not in sample.parts and name != KEY:
                msg = (
                    f"{where}The sample {sample.key!r} at offset {sample.start:,} has no "
                    f"extension {name!r}, only {sorted(sample.parts)}. Leave {name!r} out of "
                    f"columns, or write the file again with it."
                )
                raise ShardSchemaError(msg)


def _samples(found: Iterable[Member]) -> Iterator[_Sample]:
    """Group members by key, as webdataset does."""
    sample: _Sample | None = None
    for member in found:
        match = None if _is_meta(member.name) else _NAME.match(member.name)
        if match is None:
            continue
        key, extension = match.group(1), match.group(2).lower()
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = _Sample(key, {}, member.start, [])
        _add(sample, extension, member)
    if sample is not None:
        yield sample


def _add(sample: _Sample, extension: str, member: Member) -> None:
    if extension == KEY:
        msg = (
            f"has a member {member.name!r} at offset {member.start:,}, whose extension is "
            f"reserved for the key. Rename it."
        )
        raise ShardFormatError(msg)
    if extension in sample.parts:
        msg = (
            f"has the extension {extension!r} of key {sample.key!r} twice, with bodies at offsets "
            f"{sample.parts[extension][0]:,} and {member.body:,}. Write it again with one of them."
        )
        raise ShardFormatError(msg)
    sample.parts[extension] = (member.body, member.body + member.size)
    sample.crcs.append(member.crc)


def _is_meta(name: str) -> bool:
    whole = "/" not in name and name.startswith("__") and name.endswith("__")
    return whole or _META.match(name) is not None


def _require_end(read: Read, size: int, end: int) -> None:
    """Raise unless the members are followed by an end marker: zeros, and nothing else."""
    if size - end < UNIT:
        msg = (
            "is truncated: the zeros that end a tar file are missing. Write it again. If all its "
            "members are there, add the zeros with: truncate -s +1024 FILE"
        )
        raise ShardFormatError(msg)
    step = 1 << 20
    for at in range(end, size, step):
        if read(at, step).strip(b"\0"):
            msg = (
                f"goes on after its end marker at offset {end:,}, as after `cat a.tar b.tar`. "
                f"Keep the files apart, or join them with tar --concatenate."
            )
            raise ShardFormatError(msg)


def _block(begin: int, end: int, rows: int, crcs: list[int]) -> Block:
    # Headers have the names, sizes and times of the members.
    parts = [crc.to_bytes(4, "little") for crc in crcs]
    return Block(begin, end - begin, rows, end - begin, evidence(parts))


def _refuse_compressed(name: str, head: bytes) -> None:
    for magic, (algorithm, tool) in _COMPRESSED.items():
        if head.startswith(magic):
            msg = (
                f"{name} is compressed with {algorithm}, so its members cannot be addressed. "
                f"Decompress it with {tool}."
            )
            raise ShardFormatError(msg)


def _decoded(decode: _Decode, value: bytes, sample: _Sample, extension: str) -> Any:
    try:
        return decode(value)
    except Exception as error:
        msg = (
            f"{extension!r} of sample {sample.key!r} at offset {sample.parts[extension][0]:,} "
            f"cannot be decoded: {type(error).__name__}: {error}. Correct that member, or leave "
            f"{extension!r} out of columns."
        )
        raise ShardFormatError(msg) from error


def _decoder(extension: str, *, allow_pickle: bool) -> _Decode | None:
    """Choose the function that decodes values of an extension, None if they stay bytes."""
    if extension.startswith("__"):
        return _text_if_possible
    inner = extension[:-3] if f".{extension}".endswith(".gz") else extension
    kind = inner.rpartition(".")[2]
    if kind in _PICKLES and not allow_pickle:
        msg = (
            f"Values of {extension!r} are pickles, which can run any code when they are read. "
            f"Pass allow_pickle=True if you trust the files, or leave {extension!r} out of "
            f"columns."
        )
        raise OptionError(msg)
    decode = _DECODERS.get(kind)
    if kind == "npy" and allow_pickle:
        decode = _pickled_npy
    if inner == extension:
        return decode
    return gzip.decompress if decode is None else lambda value: decode(gzip.decompress(value))


def _text(value: bytes) -> str:
    return value.decode("utf-8")


def _text_if_possible(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _npy(value: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(value), allow_pickle=False)


def _pickled_npy(value: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(value), allow_pickle=True)


def _npz(value: bytes) -> dict[str, Any]:
    return dict(np.load(io.BytesIO(value)))


_PICKLES = {"pyd", "pickle", "pkl"}
_DECODERS: dict[str, _Decode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(_PICKLES, pickle.loads),
    "npy": _npy,
    "npz": _npz,
}
