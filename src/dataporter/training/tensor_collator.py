"""Batches of bare tensors: each batch is one tensor, padded if shapes differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch

from dataporter.converters.numbers import KINDS
from dataporter.errors import CollationError
from dataporter.fetch.rows import check_rows, collate_values


class TensorCollator:
    """Stacks tensors or arrays, and pads unequal shapes at their ends.

    >>> TensorCollator()([torch.tensor([1, 2, 3]), torch.tensor([4])])
    tensor([[1, 2, 3],
            [4, 0, 0]])

    Each dimension is as large as the largest row's. The padding value is `fill`. Rows of any
    other kind get torch's default collation.
    """

    def __init__(self, fill: int = 0) -> None:
        self.fill = fill

    def __call__(self, rows: Sequence[Any]) -> Any:
        check_rows(rows)
        shapes = {row.shape if is_tensor(row) else None for row in rows}
        if None in shapes or len(shapes) == 1:
            return collate_values(rows, "the rows")
        return self._padded([torch.as_tensor(row) for row in rows])

    def _padded(self, rows: list[torch.Tensor]) -> torch.Tensor:
        for number, row in enumerate(rows):
            if row.ndim != rows[0].ndim:
                msg = (
                    f"row {number} has shape {tuple(row.shape)}, row 0 has shape "
                    f"{tuple(rows[0].shape)}. Only rows with the same number of dimensions can be "
                    "padded. Reshape them in the dataset, or pass collate_fn=."
                )
                raise CollationError(msg)
        shape = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
        dtype = reduce(torch.promote_types, (row.dtype for row in rows))
        batch = rows[0].new_full((len(rows), *shape), self.fill, dtype=dtype)
        for place, row in zip(batch, rows, strict=True):
            place[tuple(map(slice, row.shape))] = row
        return batch

    def __repr__(self) -> str:
        return f"{type(self).__name__}(fill={self.fill})"


def is_tensor(row: Any) -> bool:
    """Return True for a tensor or an array that can be padded."""
    if isinstance(row, torch.Tensor):
        return row.layout is torch.strided and not row.is_nested
    return isinstance(row, np.ndarray) and row.dtype.kind in KINDS
