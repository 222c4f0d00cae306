"""Names of dtypes: torch's, NumPy's, and plain strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dataporter.arguments import did_you_mean
from dataporter.errors import OptionError, OptionTypeError

# The dtypes that torch can convert to and from. Quantised and sub-byte dtypes are not among them.
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
    """Return the torch dtype for a name, a torch dtype or a NumPy dtype.

    Names have torch's meaning: "float" has 32 bits.

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
            f"{did_you_mean(name, _NAMED)} Known dtypes: {known}."
        )
        raise OptionError(msg)
    return _NAMED[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without "torch.", as NumPy names it."""
    return str(dtype).removeprefix("torch.")
