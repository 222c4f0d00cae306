"""Arrays of plain Python numbers, with every value kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ConversionError

KINDS = "biufc"  # NumPy's letters for numbers
_BEYOND = 2**63  # the first integer that int64 lacks
_ROUNDED = 2**53  # beyond it, floats of 64 bits lack some integers
_PAST_FLOATS = 2**1023  # about where floats of 64 bits end
_WIDE = 8  # bytes of the narrowest dtype that NumPy makes of Python's integers and floats
_NUMBERS = (bool, int, float)


def as_array(numbers: Any, path: str) -> NDArray[Any] | None:
    """Return a number or a rectangular list of numbers as an array, else None.

    Rows of unequal lengths raise NumPy's ValueError.

    >>> as_array([[1, 2], [3, 4]], "ids").dtype, as_array([2**64 - 1, 0], "ids").dtype
    (dtype('int64'), dtype('uint64'))
    """
    array = np.array(numbers)
    kind = array.dtype.kind
    if kind in "ufc" and array.dtype.itemsize >= _WIDE and (abs(array) >= _ROUNDED).any():
        # NumPy makes floats of integers that stand beside floats, or above 63 bits beside others.
        return _exact(np.array(numbers, dtype=object), path, otherwise=array)
    if kind == "O":
        return _exact(array, path, otherwise=None)
    return array if kind in KINDS else None


def _exact(numbers: Any, path: str, otherwise: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return integers as integers, and `otherwise` if they keep their values as floats."""
    flat: list[Any] = numbers.ravel().tolist()
    integers = [number for number in flat if type(number) is int]
    if integers and len(integers) == len(flat):
        return _integers(numbers, integers, path)
    if otherwise is None and not all(isinstance(number, _NUMBERS) for number in flat):
        return None
    for number in integers:
        if abs(number) >= _PAST_FLOATS or int(float(number)) != number:
            msg = (
                f"{path}: {number} stands beside floats, and floats of 64 bits lack it. Give "
                "integers only, or floats only."
            )
            raise ConversionError(msg)
    return (
        np.array(flat, dtype=np.float64).reshape(numbers.shape) if otherwise is None else otherwise
    )


def _integers(numbers: Any, flat: list[int], path: str) -> NDArray[Any]:
    low, high = min(flat), max(flat)
    if high >= 2 * _BEYOND or low < 0:
        found = f"{high}" if high >= 2 * _BEYOND or high < _BEYOND else f"{high} beside {low}"
        msg = f"{path}: {found} does not fit into 64 bits, torch's widest integers."
        raise ConversionError(msg)
    integers: NDArray[Any] = numbers.astype(np.uint64)
    return integers
