"""An order with something to say of its data in `loader.explain()`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order, Plan


@dataclass(frozen=True, slots=True, eq=False)
class ToldOrder(Order):
    """The same order as `order`, explained with another row."""

    order: Order
    heading: str
    words: str

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.order.length

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.order.seed

    @property
    def id(self) -> str:  # type: ignore[override]
        return self.order.id

    @property
    def names_data(self) -> bool:  # type: ignore[override]
        """True if the id also names the data."""
        return self.order.names_data

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.order.indices(epoch, positions)

    def with_seed(self, seed: int) -> ToldOrder:
        return replace(self, order=self.order.with_seed(seed))

    def resumed(self, saved_id: str) -> ToldOrder:
        return replace(self, order=self.order.resumed(saved_id))

    def continued(self, epoch: int, position: int) -> ToldOrder:
        return replace(self, order=self.order.continued(epoch, position))

    def deal(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.float64] | None:
        return self.order.deal(epoch, positions)

    def announce(
        self, epoch: int, start: int, stop: int, plan: Plan, reader: Order | None = None
    ) -> None:
        self.order.announce(epoch, start, stop, plan, reader)

    def bare(self) -> Order:
        return self.order.bare()

    def explained(self, epoch: int, position: int) -> list[tuple[str, str]]:
        return [*self.order.explained(epoch, position), (self.heading, self.words)]
