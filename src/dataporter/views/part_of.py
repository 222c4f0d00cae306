"""One part of an order that reads several datasets, as those who fetch the part are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Uses, WrappedOrder


@runtime_checkable
class HasParts(Protocol):
    """An order that knows when the blocks of its parts are read."""

    def uses_of_part(self, number: int, epoch: int) -> Uses | None:
        """Return the stretches in which blocks of a part are read; None if any may be next."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PartOf(WrappedOrder):
    """The positions of `order`, with the indices of one part, and -1 where another is read.

    >>> from dataporter.law import SequentialOrder
    >>> PartOf(SequentialOrder(5), first=1, samples=3, number=0).indices(0, np.arange(5)).tolist()
    [-1, 0, 1, 2, -1]
    """

    first: int  # the index of the part's first sample
    samples: int
    number: int  # of the part
    beyond: int = 0  # what its further indices are shifted by
    further: int = 0

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        joined = self.order.indices(epoch, positions)
        found = joined - self.first
        found[(found < 0) | (found >= self.samples)] = -1
        if self.further:
            own = joined - self.beyond
            is_further = (own >= self.samples) & (own < self.samples + self.further)
            found[is_further] = own[is_further]
        return found

    def uses(self, epoch: int) -> Uses | None:
        order = self.order
        return order.uses_of_part(self.number, epoch) if isinstance(order, HasParts) else None
