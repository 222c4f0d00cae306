"""The rows that a view reads, as the porter of its data is told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataporter.law import WrappedOrder


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfView(WrappedOrder):
    """The order of a view, with the first row of the block that a sample is made of.

    A view makes other numbers of samples of a block, and a porter knows blocks by their rows.

    >>> from dataporter.law import SequentialOrder
    >>> told = RowsOfView(SequentialOrder(4), rows=np.array([1, 0, 3]), of=np.array([5, 5, 5]))
    >>> told.indices(0, np.arange(4)).tolist()
    [0, 10, 10, 10]
    """

    rows: NDArray[np.int64]  # of the view, in each block
    of: NDArray[np.int64]  # rows of the data

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        found = self.order.indices(epoch, positions)
        blocks = np.searchsorted(np.cumsum(self.rows), found, side="right")
        first = np.cumsum(self.of) - self.of
        return np.where(found < 0, -1, first[blocks])
