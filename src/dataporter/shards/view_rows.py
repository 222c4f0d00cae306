"""The rows that a view reads, as the porter of its data is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order
from dataporter.shards.tracks import Uses


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfView(Order):
    """The order of a view, with the first row of the block that a sample is made of.

    A view makes other numbers of samples of a block, and a porter knows blocks by their rows.

    >>> from dataporter.law import SequentialOrder
    >>> told = RowsOfView(SequentialOrder(4), rows=np.array([1, 0, 3]), of=np.array([5, 5, 5]))
    >>> told.indices(0, np.arange(4)).tolist()
    [0, 10, 10, 10]
    """

    order: Order
    rows: NDArray[np.int64]  # of the view, in each block
    of: NDArray[np.int64]  # rows of the data
    length: int = field(init=False)
    seed: int = field(init=False)
    id: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("length", "seed", "id"):
            object.__setattr__(self, name, getattr(self.order, name))

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        found = self.order.indices(epoch, positions)
        blocks = np.searchsorted(np.cumsum(self.rows), found, side="right")
        first = np.cumsum(self.of) - self.of
        return np.where(found < 0, -1, first[blocks])

    def with_seed(self, seed: int) -> RowsOfView:
        return RowsOfView(self.order.with_seed(seed), self.rows, self.of)

    def deal(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.float64] | None:
        return self.order.deal(epoch, positions)

    def uses(self, epoch: int) -> Uses | None:
        """Return the stretches in which blocks are read; None if the order does not tell."""
        uses = getattr(self.order, "uses", None)
        return None if uses is None else uses(epoch)
