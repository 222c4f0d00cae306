"""The datasets that a view is made of: their orders and their samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dataporter.fetch.fetcher import getitems_of
from dataporter.law import Order, OrderedDataset, SequentialOrder, ShuffledOrder


class Asked(NamedTuple):
    """The arguments by which a loader asks for an order, beside the seed."""

    shuffle: bool
    step_size: int
    world_size: int


def order_of(data: Any, length: int, asked: Asked, seed: int = 0) -> Order:
    """Return the order that a dataset has by itself."""
    if isinstance(data, OrderedDataset):
        return data.epoch_order(seed=seed, **asked._asdict())
    return ShuffledOrder(length, seed) if asked.shuffle else SequentialOrder(length, seed)


def read(data: Any, indices: Sequence[int]) -> Sequence[Any]:
    """Read samples of a dataset, at once if it can."""
    getitems = getitems_of(data)
    return [data[index] for index in indices] if getitems is None else getitems(indices)


def index_space(data: Any) -> int:
    """Return the number that all indices of a dataset are below.

    That is its length, unless its order has further indices for samples that no plain index has.
    """
    return int(getattr(data, "index_space", len(data)))
