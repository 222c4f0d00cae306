"""What may be said for a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dataporter.arguments import did_you_mean
from dataporter.errors import OptionError, OptionTypeError

# Those that torch can convert to and from; its quantised and sub-byte ones are not.
_SUPPORTED = {
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
}
# Every name that torch has for them, aliases such as "half" included.
_NAMED: dict[str, torch.dtype] = {
    name: value
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and value in _SUPPORTED
}


def as_dtype(dtype: Any, key: str = "") -> torch.dtype:
    """Return the torch dtype that is meant: by name, as one of torch's or of NumPy's.

    Names mean what they mean in torch: "float" has 32 bits.

    >>> as_dtype("float16"), as_dtype("torch.long"), as_dtype(np.uint8)
    (torch.float16, torch.int64, torch.uint8)
    """
    where = f" for {key!r}" if key else ""
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        dtype = np.dtype(dtype).name
    if isinstance(dtype, torch.dtype):
        dtype = dtype_name(dtype)
    if not isinstance(dtype, str):
        msg = (
            f"the dtype{where} must be a name such as 'float16', a torch.dtype or a NumPy dtype, "
            f"found {type(dtype).__name__} {dtype!r}."
        )
        raise OptionTypeError(msg)
    name = dtype.removeprefix("torch.")
    if name not in _NAMED:
        known = ", ".join(sorted(map(dtype_name, _SUPPORTED)))
        msg = (
            f"the dtype{where} is unknown: found {dtype!r}."
            f"{did_you_mean(name, _NAMED)} Known are {known}."
        )
        raise OptionError(msg)
    return _NAMED[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Name a dtype as NumPy does: without "torch."."""
    return str(dtype).removeprefix("torch.")
