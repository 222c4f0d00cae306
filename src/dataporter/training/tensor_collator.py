"""Batches of bare tensors: each batch is one tensor, padded if shapes differ."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.converters.dtypes import dtype_name
from dataporter.converters.narrowing import cast
from dataporter.converters.numbers import KINDS, as_array
from dataporter.errors import CollationError, ConversionError
from dataporter.fetch import draws_nothing
from dataporter.fetch.ragged import Side
from dataporter.fetch.rows import check_rows, collate_values


class TensorCollator:
    """Stacks tensors or arrays, and pads unequal shapes at their ends.

    >>> TensorCollator()([torch.tensor([1, 2, 3]), torch.tensor([4])])
    tensor([[1, 2, 3],
            [4, 0, 0]])

    Each dimension is as large as the largest row's. The padding value is `fill`. Lists of numbers
    are taken for tensors. Rows of any other kind get torch's default collation.
    """

    def __init__(self, fill: int = 0) -> None:
        self.fill = fill

    @draws_nothing
    def __call__(self, rows: Sequence[Any]) -> Any:
        check_rows(rows)
        if all(map(is_list_of_numbers, rows)):
            return pad(rows_of_numbers(rows, "the rows"), self.fill, "the rows")
        shapes = {row.shape if is_tensor(row) else None for row in rows}
        if None in shapes or len(shapes) == 1:
            return collate_values(rows, "the rows")
        for number, row in enumerate(rows):
            if row.ndim != rows[0].ndim:
                msg = (
                    f"row {number} has shape {tuple(row.shape)}, row 0 has shape "
                    f"{tuple(rows[0].shape)}. Only rows with the same number of dimensions can be "
                    "padded. Reshape them in the dataset, or pass collate_fn=."
                )
                raise CollationError(msg)
        return pad(list(map(as_tensor, rows)), self.fill, "the rows")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(fill={self.fill})"


def pad(rows: Sequence[torch.Tensor], fill: int, what: str, side: Side = "right") -> torch.Tensor:
    """Make one tensor of rows with the same number of dimensions, padded at `side` with `fill`.

    Its dtype is that of the rows. Empty rows do not count, since theirs may be anything.
    """
    dtype = _common_dtype(rows, what)
    if len({(row.shape, row.dtype) for row in rows}) == 1:
        return torch.stack(list(rows))
    shape = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    if fill and any(list(row.shape) != shape for row in rows):
        _check_fill(fill, dtype, what)
    batch = rows[0].new_full((len(rows), *shape), fill, dtype=dtype)
    for number, (place, row) in enumerate(zip(batch, rows, strict=True)):
        inside = [
            slice(whole - size, whole) if side == "left" else slice(size)
            for whole, size in zip(shape, row.shape, strict=True)
        ]
        place[tuple(inside)] = cast(row, dtype, path=f"{what}, row {number}")
    return batch


def _common_dtype(rows: Sequence[torch.Tensor], what: str) -> torch.dtype:
    dtypes = {row.dtype for row in rows if row.numel()} or {row.dtype for row in rows}
    try:
        return reduce(torch.promote_types, dtypes)
    except RuntimeError as error:  # the wider unsigned integers have no dtype in common with others
        found = " and ".join(sorted(map(dtype_name, dtypes)))
        msg = (
            f"{what} cannot be made into one batch: there are {found} among them. Convert them to "
            "one dtype in the dataset."
        )
        raise CollationError(msg) from error


def _check_fill(fill: int, dtype: torch.dtype, what: str) -> None:
    try:
        cast(torch.tensor(fill), dtype)
    except ConversionError as error:
        msg = (
            f"{what} have unequal lengths, and their padding {fill} does not fit into "
            f"{dtype_name(dtype)}. Convert them in the dataset to a dtype that holds it."
        )
        raise CollationError(msg) from error


def rows_of_numbers(rows: Sequence[Any], what: str) -> list[torch.Tensor]:
    """Return sequences of numbers as tensors, with their own dtypes.

    >>> rows_of_numbers([[0.5], []], "x")
    [tensor([0.5000], dtype=torch.float64), tensor([], dtype=torch.float64)]
    """
    if all(isinstance(row, list | tuple) for row in rows):
        numbers = array_of_numbers(list(chain.from_iterable(rows)), what)
        return list(torch.from_numpy(numbers).split(list(map(len, rows))))
    return [
        torch.from_numpy(array_of_numbers(row, what))
        if isinstance(row, list | tuple)
        else as_tensor(row)
        for row in rows
    ]


def array_of_numbers(numbers: Sequence[Any], what: str) -> NDArray[Any]:
    """Return plain numbers as an array of the dtype that they have in every batch."""
    if not numbers:
        return np.empty(0, dtype=np.int64)
    found = None
    try:
        if set(map(type, numbers)) == {int}:  # faster than np.array, and nothing else than int64
            return np.frombuffer(array("q", numbers), dtype=np.int64)
        found = as_array(numbers, what)
    except OverflowError as error:
        msg = (
            f"{what}: {max(numbers, key=abs)} does not fit into int64, the dtype of Python's "
            "integers in a batch. Make an array of dtype uint64 in the dataset."
        )
        raise CollationError(msg) from error
    except ConversionError:
        raise
    except ValueError:  # lists among numbers
        pass
    if found is None or found.ndim != 1:
        msg = f"{what}: expected sequences of numbers, found {numbers!r:.100}."
        raise CollationError(msg)
    return found


def as_tensor(row: torch.Tensor | NDArray[Any]) -> torch.Tensor:
    """Return a tensor or an array as a tensor. An array may be read-only, so it is copied."""
    if isinstance(row, torch.Tensor):
        return row
    try:
        return torch.from_numpy(np.array(row, dtype=row.dtype.newbyteorder("=")))
    except TypeError as error:
        msg = f"the rows must hold numbers, found an array of {row.dtype}. {error}"
        raise CollationError(msg) from error


def is_list_of_numbers(row: Any) -> bool:
    """Return True for a list that is empty or begins with a plain number."""
    return type(row) is list and (not row or type(row[0]) in (bool, int, float))


def is_tensor(row: Any) -> bool:
    """Return True for a tensor or an array that can be padded."""
    if isinstance(row, torch.Tensor):
        return row.layout is torch.strided and not row.is_nested
    return isinstance(row, np.ndarray) and row.dtype.kind in KINDS
