"""One part of an order that reads several datasets, as those who fetch the part are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order


@dataclass(frozen=True, slots=True, eq=False)
class PartOf(Order):
    """The positions of `order`, with the indices of one part, and -1 where another is read.

    >>> from dataporter.law import SequentialOrder
    >>> PartOf(SequentialOrder(5), first=1, samples=3).indices(0, np.arange(5)).tolist()
    [-1, 0, 1, 2, -1]
    """

    order: Order
    first: int  # index of the part
    samples: int
    number: int | None = None  # of the part, if `order` is a mixture
    length: int = field(init=False)
    seed: int = field(init=False)
    id: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("length", "seed", "id"):
            object.__setattr__(self, name, getattr(self.order, name))

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        found = self.order.indices(epoch, positions) - self.first
        found[(found < 0) | (found >= self.samples)] = -1
        return found

    def with_seed(self, seed: int) -> PartOf:
        return PartOf(self.order.with_seed(seed), self.first, self.samples, self.number)

    def deal(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.float64] | None:
        return self.order.deal(epoch, positions)

    def uses(self, epoch: int) -> Any:
        """Return the stretches in which blocks of the part are read; None if nobody knows."""
        uses = getattr(self.order, "uses_of_part", None)
        return None if uses is None or self.number is None else uses(self.number, epoch)
