"""The datasets that a view is made of: their orders and their samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from dataporter.fetch.fetcher import getitems_of
from dataporter.law import Order, OrderedDataset, SequentialOrder, ShuffledOrder
from dataporter.sources.fingerprint import declared_fingerprint


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


def name_of(data: Any) -> str | None:
    """Return a name under which results on data may be kept in files; None if it has none.

    It is the fingerprint that the data itself declares. One that is made of some of the contents
    will do to notice a mistake, but not to take results over: other data may have the same. Nor
    will that of a view whose data has no name.
    """
    if isinstance(data, Subset):
        whole = name_of(data.dataset)
        chosen = np.asarray(data.indices, dtype="<i8").tobytes()
        digest = hashlib.blake2b(chosen, digest_size=8).hexdigest()
        return None if whole is None else f"{whole}[{digest}]"
    if isinstance(data, ConcatDataset):
        names = [name_of(each) for each in data.datasets]
        return None if None in names else f"{names}"
    return declared_fingerprint(data) if getattr(data, "is_named", True) else None
