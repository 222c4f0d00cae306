"""Encodings of MDS columns: from stored bytes to values.

Values equal those of streaming's own reader, except images, which stay bytes as they are stored:
`jpeg`, `png`, `pil`, `jpeg_array` and lists of images.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np

from dataporter.errors import OptionError, ShardSchemaError

Decode: TypeAlias = Callable[[bytes], Any]


def decoder(encoding: str, column: str, *, allow_pickle: bool) -> Decode:
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

    def decode(value: bytes) -> Any:
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
    def decode(value: bytes) -> Any:
        (number,) = np.frombuffer(value, dtype)
        return number

    return decode


def _text(value: bytes) -> str:
    return value.decode("utf-8")


def _int(value: bytes) -> int:
    return int.from_bytes(value, "little", signed=True)


def _decimal(value: bytes) -> Decimal:
    return Decimal(value.decode("utf-8"))


def _as_it_is(value: bytes) -> bytes:
    return value


# The number that stands for the dtype of an array.
_ARRAY_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_IMAGES = ("jpeg", "png", "pil", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
_DECODERS: dict[str, Decode] = {
    "bytes": _as_it_is,
    "str": _text,
    "int": _int,
    **{name: _scalar_decoder(np.dtype(name)) for name in _ARRAY_DTYPES.values()},
    "str_int": int,
    "str_float": float,
    "str_decimal": _decimal,
    "json": json.loads,
    "pkl": pickle.loads,
    **dict.fromkeys(_IMAGES, _as_it_is),
}
