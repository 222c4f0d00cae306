"""Arrays of plain Python numbers, with every value kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ConversionError

KINDS = "biufc"  # NumPy's letters for numbers
_BEYOND = 2**63  # the first integer that int64 lacks


def as_array(numbers: Any, path: str) -> NDArray[Any] | None:
    """Return a number or a rectangular list of numbers as an array, else None.

    Rows of unequal lengths raise NumPy's ValueError.

    >>> as_array([[1, 2], [3, 4]], "ids").dtype, as_array([2**64 - 1, 0], "ids").dtype
    (dtype('int64'), dtype('uint64'))
    """
    array = np.array(numbers)
    if array.dtype.kind in "uf" and (abs(array) >= _BEYOND).any():
        # NumPy would make floats of integers above 63 bits that stand beside smaller ones.
        return _integers(np.array(numbers, dtype=object), path, otherwise=array)
    if array.dtype.kind == "O":
        return _integers(array, path, otherwise=None)
    return array if array.dtype.kind in KINDS else None


def _integers(numbers: Any, path: str, otherwise: NDArray[Any] | None) -> NDArray[Any] | None:
    flat: list[Any] = numbers.ravel().tolist()
    if not all(type(number) is int for number in flat):
        return otherwise
    low, high = min(flat), max(flat)
    if high >= 2 * _BEYOND or low < 0:
        found = f"{high}" if high >= 2 * _BEYOND or high < _BEYOND else f"{high} beside {low}"
        msg = f"{path}: {found} does not fit into 64 bits, torch's widest integers."
        raise ConversionError(msg)
    integers: NDArray[Any] = numbers.astype(np.uint64)
    return integers
