"""Rows of LitData chunks: leaves by their serializer, and the tree that these form.

Values equal those of LitData's own reader, except media, which stay bytes as they are stored:
images, audio, video, PDF, meshes and the like.

LitData's own serializers would need LitData, and the one that wrote the data or a newer one: those
of 0.2.71 know no "json". Measured against these, a value with memory of its own takes 0.3 (arrays)
to 1.0 (tensors) times as long here, and nothing has to be imported, which takes them 0.3 s.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dataporter.errors import OptionError, ShardFormatError, ShardSchemaError
from dataporter.shards.formats.format import ReadOptions, Rows, Sample, check_columns
from dataporter.shards.formats.index_json import Decode, StoredColumn
from dataporter.shards.formats.tokens import COLUMN as TOKENS

_ARROW_MAGIC = b"LDARW01\0"  # at the end of a chunk with an Arrow file, after the file's size
_ARROW_TAIL = struct.Struct(f"<I{len(_ARROW_MAGIC)}s")
# LitData's numbers of dtypes.
TORCH_DTYPES = [
    getattr(torch, name)
    for name in (
        *("float32", "float32", "float64", "float64", "complex64", "complex64"),
        *("complex128", "complex128", "float16", "float16", "bfloat16", "uint8", "int8"),
        *("int16", "int16", "int32", "int32", "int64", "int64", "bool", "uint16"),
    )
]
NUMPY_DTYPES = [
    np.dtype(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", "bool"),
    )
]
_MEDIA = (
    *("jpeg", "pil", "jpeg_array", "image", "video", "audio"),
    *("nifti", "mesh", "pdf", "tifffile"),
)
_LAST_TAG = 0x20  # values that begin with a larger byte are JSON, as earlier versions wrote them
_JSON, _TEXTS, _INTS, _FLOATS, _BOOLS, _DICT, _RECORDS = range(7)
_TEXT, _INT, _FLOAT, _BOOL, _NONE = range(7, 12)
# Kinds of the fields of a record.
_FIELD_KINDS = {0x10: _NONE, 0x11: _TEXT, 0x12: _INT, 0x13: _FLOAT, 0x14: _BOOL}
_CONTAINERS: dict[str, type] = {
    "builtins.dict": dict,
    "collections.OrderedDict": dict,
    "builtins.list": list,
    "builtins.tuple": tuple,
}


class Tree(NamedTuple):
    """The shape of a sample: a leaf, or a container of trees."""

    kind: type | None  # None for a leaf
    keys: tuple[Any, ...]
    children: tuple[Tree, ...]
    leaves: int

    def join(self, leaves: Iterator[Any]) -> Any:
        """Make a value of its leaves."""
        if self.kind is None:
            return next(leaves)
        values = [child.join(leaves) for child in self.children]
        return self.kind(zip(self.keys, values, strict=True) if self.kind is dict else values)


def parse_tree(text: str) -> Tree:
    """Parse the `data_spec` of an index."""
    protocol, spec = json.loads(text)
    if protocol != 1:
        msg = f"protocol {protocol!r} of data_spec is unknown, expected 1"
        raise ValueError(msg)
    return _parse_node(spec)


def _parse_node(spec: dict[str, Any]) -> Tree:
    if spec["type"] is None:
        return Tree(None, (), (), 1)
    if spec["type"] not in _CONTAINERS:
        msg = f"samples contain a {spec['type']}, which is unknown"
        raise ValueError(msg)
    kind = _CONTAINERS[spec["type"]]
    children = tuple(_parse_node(child) for child in spec["children_spec"])
    keys = tuple(json.loads(spec["context"])) if kind is dict else ()
    return Tree(kind, keys, children, sum(child.leaves for child in children))


def trees_of_columns(schema: Mapping[str, Any]) -> dict[str, tuple[Tree, int]]:
    """Return the tree of each column, and the number of its first leaf.

    A sample that is a dict has its keys as columns, a tuple or list "0", "1" and so on, a single
    value "sample".
    """
    tree = parse_tree(schema["tree"])
    if schema["tokens"] or tree.kind is None:
        return {TOKENS if schema["tokens"] else "sample": (tree, 0)}
    columns, first = {}, 0
    names = tree.keys if tree.kind is dict else range(len(tree.children))
    for name, child in zip(names, tree.children, strict=True):
        columns[str(name)] = (child, first)
        first += child.leaves
    return columns


def plain_columns(schema: Mapping[str, Any], options: ReadOptions) -> list[StoredColumn]:
    """Return the selected columns of plain rows."""
    trees = trees_of_columns(schema)
    columns = []
    for name in trees if options.columns is None else options.columns:
        tree, first = trees[name]
        kinds = schema["leaves"][first : first + tree.leaves]
        decoders = [leaf_decoder(kind, allow_pickle=options.allow_pickle) for kind in kinds]
        join = None if tree.kind is None else tree.join
        columns.append(StoredColumn(name, first, decoders, join))
    return columns


def leaf_decoder(data_format: str, *, allow_pickle: bool) -> Decode:
    """Choose the function that decodes leaves of a `data_format`."""
    kind, _, detail = data_format.partition(":")
    number = int(detail) if detail.isdigit() else -1
    if kind == "no_header_tensor" and 0 <= number < len(TORCH_DTYPES):
        torch_dtype = TORCH_DTYPES[number]
        return lambda value: _tensor_of(value, torch_dtype)
    if kind == "no_header_numpy" and 0 <= number < len(NUMPY_DTYPES):
        numpy_dtype = NUMPY_DTYPES[number]
        return lambda value: np.frombuffer(value, numpy_dtype).copy()
    if kind == "pickle" and not allow_pickle:
        msg = (
            "The data has pickles, which can run any code when they are read. Pass "
            "allow_pickle=True if you trust the files, or choose other columns."
        )
        raise OptionError(msg)
    if kind not in _DECODERS:
        msg = (
            f"The data has values of the format {data_format!r}, which cannot be read. Choose "
            f"other columns, or write the dataset again with one of {sorted(_DECODERS)}."
        )
        raise ShardSchemaError(msg)
    return _DECODERS[kind]


def _tensor_of(value: memoryview, dtype: torch.dtype) -> torch.Tensor:
    # torch refuses an empty buffer.
    return torch.frombuffer(bytearray(value), dtype=dtype) if value else torch.empty(0, dtype=dtype)


def _tensor(value: memoryview) -> torch.Tensor:
    number, dimensions = struct.unpack_from(">II", value)
    shape = struct.unpack_from(f">{dimensions}I", value, 8)
    return _tensor_of(value[8 + 4 * dimensions :], TORCH_DTYPES[number]).reshape(shape)


def _array(value: memoryview) -> Any:
    number, dimensions = struct.unpack_from("<II", value)
    shape = struct.unpack_from(f"<{dimensions}I", value, 8)
    flat = np.frombuffer(value[8 + 4 * dimensions :], NUMPY_DTYPES[number])
    return flat.reshape(shape).copy()


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _number(layout: str) -> Decode:
    unpack = struct.Struct(layout).unpack
    return lambda value: unpack(value)[0]


def _bool(value: memoryview) -> bool:
    return value[0] != 0


def read_json(value: memoryview) -> Any:
    """Decode a list, a dict or a plain value: a tag, then binary values or JSON."""
    data = bytes(value)
    if not data or data[0] > _LAST_TAG:
        return json.loads(data)
    return _Tagged(data).value()


class _Tagged:
    """A value behind a tag, and how far it has been read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self) -> Any:
        tag = self._byte()
        if tag == _JSON:
            return json.loads(self._take(self._count()))
        if tag == _TEXTS:
            return [self._text() for _ in range(self._count())]
        if tag in {_INTS, _FLOATS}:
            dtype = "<i8" if tag == _INTS else "<f8"
            return np.frombuffer(self._take(8 * self._count()), dtype).tolist()
        if tag == _BOOLS:
            return [byte != 0 for byte in self._take(self._count())]
        if tag == _DICT:
            return {self._text(): self.value() for _ in range(self._count())}
        if tag == _RECORDS:
            return self._records()
        return self._plain(tag)

    def _records(self) -> list[dict[str, Any]]:
        rows = self._count()
        keys = [self._text() for _ in range(self._count())]
        return [{key: self._plain(_FIELD_KINDS[self._byte()]) for key in keys} for _ in range(rows)]

    def _plain(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind in {_INT, _FLOAT}:
            return struct.unpack("<q" if kind == _INT else "<d", self._take(8))[0]
        if kind == _BOOL:
            return self._byte() != 0
        if kind == _NONE:
            return None
        msg = f"unknown tag {kind}"
        raise ValueError(msg)

    def _byte(self) -> int:
        return self._take(1)[0]

    def _count(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _text(self) -> str:
        return self._take(self._count()).decode("utf-8")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            msg = f"{size} bytes at {self._at} are more than there are"
            raise ValueError(msg)
        taken = self._data[self._at : end]
        self._at = end
        return taken


_DECODERS: dict[str, Decode] = {
    "str": _text,
    "text": _text,
    "int": _number("<q"),
    "float": _number("<d"),
    "bool": _bool,
    "bytes": bytes,
    "file": bytes,
    "numpy": _array,
    "tensor": _tensor,
    "json": read_json,
    "pickle": pickle.loads,
    **dict.fromkeys(_MEDIA, bytes),
}


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
