"""An order with something to say of its data in `loader.explain()`."""

from __future__ import annotations

from dataclasses import dataclass

from dataporter.law import WrappedOrder


@dataclass(frozen=True, slots=True, eq=False)
class ToldOrder(WrappedOrder):
    """The same order as `order`, explained with another row."""

    heading: str
    words: str

    def explained(self, epoch: int, position: int) -> list[tuple[str, str]]:
        return [*self.order.explained(epoch, position), (self.heading, self.words)]
