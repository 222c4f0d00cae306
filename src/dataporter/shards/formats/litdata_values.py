"""Values of LitData samples: leaves by their serializer, and the tree that they form.

Values equal those of LitData's own reader, except media, which stay bytes as they are stored:
images, audio, video, PDF, meshes and the like.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from dataporter.errors import OptionError, ShardSchemaError
from dataporter.shards.formats.litdata_json import read_json

Decode: TypeAlias = Callable[[memoryview], Any]

# LitData's numbers of dtypes.
TORCH_DTYPES = (
    torch.float32,
    torch.float32,
    torch.float64,
    torch.float64,
    torch.complex64,
    torch.complex64,
    torch.complex128,
    torch.complex128,
    torch.float16,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int16,
    torch.int32,
    torch.int32,
    torch.int64,
    torch.int64,
    torch.bool,
    torch.uint16,
)
NUMPY_DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", "bool"),
    )
)
_MEDIA = (
    *("jpeg", "pil", "jpeg_array", "image", "video", "audio"),
    *("nifti", "mesh", "pdf", "tifffile"),
)


class Tree(NamedTuple):
    """The shape of a sample: a leaf, or a container of trees."""

    kind: type | None  # None for a leaf
    keys: tuple[Any, ...]
    children: tuple[Tree, ...]
    leaves: int

    def build(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        values = [child.build(leaves) for child in self.children]
        if self.kind is dict:
            return dict(zip(self.keys, values, strict=True))
        return self.kind(values)

    def columns(self) -> list[tuple[str, Tree]]:
        """Return the columns of a sample with this shape.

        A dict has its keys, a tuple or list the names "0", "1" and so on. A single value is called
        "sample".
        """
        if self.kind is None:
            return [("sample", self)]
        if self.kind is dict:
            return [(str(key), child) for key, child in zip(self.keys, self.children, strict=True)]
        return [(str(number), child) for number, child in enumerate(self.children)]


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
    kinds: dict[str, type] = {
        "builtins.dict": dict,
        "collections.OrderedDict": dict,
        "builtins.list": list,
        "builtins.tuple": tuple,
    }
    if spec["type"] not in kinds:
        msg = f"samples contain a {spec['type']}, which is unknown"
        raise ValueError(msg)
    kind = kinds[spec["type"]]
    children = tuple(_parse_node(child) for child in spec["children_spec"])
    keys = tuple(json.loads(spec["context"])) if kind is dict else ()
    return Tree(kind, keys, children, sum(child.leaves for child in children))


def leaf_decoder(data_format: str, *, allow_pickle: bool) -> Decode:
    """Choose the function that decodes leaves of a `data_format`."""
    kind, _, detail = data_format.partition(":")
    number = int(detail) if detail.isdigit() else -1
    if kind == "no_header_tensor" and 0 <= number < len(TORCH_DTYPES):
        return _flat_tensor_decoder(TORCH_DTYPES[number])
    if kind == "no_header_numpy" and 0 <= number < len(NUMPY_DTYPES):
        return _flat_array_decoder(NUMPY_DTYPES[number])
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


def _flat_tensor_decoder(dtype: torch.dtype) -> Decode:
    def decode(value: memoryview) -> Any:
        return _tensor_of(value, dtype)

    return decode


def _flat_array_decoder(dtype: np.dtype[Any]) -> Decode:
    def decode(value: memoryview) -> Any:
        return np.frombuffer(value, dtype).copy()

    return decode


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


def _int(value: memoryview) -> int:
    (number,) = struct.unpack("<q", value)
    return int(number)


def _float(value: memoryview) -> float:
    (number,) = struct.unpack("<d", value)
    return float(number)


def _bool(value: memoryview) -> bool:
    return value[0] != 0


_DECODERS: dict[str, Decode] = {
    "str": _text,
    "text": _text,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "bytes": bytes,
    "file": bytes,
    "numpy": _array,
    "tensor": _tensor,
    "json": read_json,
    "pickle": pickle.loads,
    **dict.fromkeys(_MEDIA, bytes),
}
