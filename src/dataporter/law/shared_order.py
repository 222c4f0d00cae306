"""An order and the ranks that share it: what a source owns, and samplers show.

Orders and ranks are values. This is the one place where a run keeps which ones it has now: a loaded
state brings its seed, a grown dataset another length, a process group other ranks. A sampler reads
the place that its loader's source reads, so neither has to be told.
"""

from __future__ import annotations

import sys
from collections.abc import Sized
from dataclasses import replace

from numpy.typing import ArrayLike

from dataporter.errors import OptionError, OptionTypeError
from dataporter.law.datasets import OrderedDataset
from dataporter.law.keys import checked_seed
from dataporter.law.orders import Order, SequentialOrder, ShuffledOrder, WeightedOrder
from dataporter.law.ranks import Ranks, Topology


class SharedOrder:
    """The order of a run, and the ranks that share it, as they are now.

    `data` is a dataset or its length; a dataset may bring an order of its own.
    """

    def __init__(
        self,
        data: Sized | int,
        ranks: Ranks,
        *,
        shuffle: bool,
        seed: int,
        seed_is_given: bool,
        weights: ArrayLike | None = None,
        replacement: bool = True,
        num_samples: int | None = None,
    ) -> None:
        if not isinstance(data, int | Sized):
            msg = f"a sampler needs a dataset or its length, found {type(data).__name__} {data!r}."
            raise OptionTypeError(msg)
        length = _checked_length(data if isinstance(data, int) else len(data))
        self.ranks = ranks
        self.shuffle = shuffle
        self.seed_is_given = seed_is_given
        self._brings = data if weights is None and isinstance(data, OrderedDataset) else None
        self.order: Order
        if self._brings is not None and num_samples is None:
            self.order = self._brings.epoch_order(
                shuffle=shuffle, seed=seed, step_size=1, world_size=1
            )
        elif weights is None:
            _check_is_whole(num_samples)
            self.order = ShuffledOrder(length, seed) if shuffle else SequentialOrder(length, seed)
        else:
            self.order = _weighted(weights, length, num_samples, replacement, seed, shuffle)

    @property
    def topology(self) -> Topology:
        """This rank, and how many there are."""
        return self.ranks.topology

    @property
    def seed(self) -> int:
        return self.order.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.order = self.order.with_seed(checked_seed(seed))

    def ask_again(self, batch_size: int) -> None:
        """Ask the dataset again for its order, if it brings one: the ranks are now known."""
        if self._brings is None:
            return
        world_size = self.topology.world_size
        self.order = self._brings.epoch_order(
            shuffle=self.shuffle,
            seed=self.seed,
            step_size=world_size * batch_size,
            world_size=world_size,
        )

    def resume(self, saved_id: str, epoch: int, position: int) -> None:
        """Take over the parameters of a saved run's order, and go on from a position."""
        self.order = self.order.resumed(saved_id).continued(epoch, position)

    def resize(self, length: int) -> None:
        """Change the number of samples to draw from. Weighted orders cannot be resized."""
        if length != self.order.length:
            self.order = replace(self.order, length=_checked_length(length))  # type: ignore[type-var]  # a dataclass


def _weighted(
    weights: ArrayLike,
    length: int,
    num_samples: int | None,
    replacement: bool,
    seed: int,
    shuffle: bool,
) -> WeightedOrder:
    if num_samples is not None and not (type(num_samples) is int and num_samples >= 0):
        msg = f"num_samples must be an int of at least 0, found {num_samples!r}."
        raise OptionError(msg)
    if shuffle:
        msg = (
            "shuffle=True conflicts with weights, which already give a random order. Remove one "
            "of them."
        )
        raise OptionError(msg)
    order = WeightedOrder(
        weights,
        length=length if num_samples is None else num_samples,
        replacement=replacement,
        seed=seed,
    )
    if len(order.weights) != length:
        msg = f"weights must have one entry per sample: found {len(order.weights)} for {length}."
        raise OptionError(msg)
    return order


def _check_is_whole(num_samples: int | None) -> None:
    if num_samples is not None:
        msg = (
            f"num_samples={num_samples} requires weights=. Without weights an epoch is the "
            "whole dataset."
        )
        raise OptionError(msg)


def _checked_length(length: int) -> int:
    if isinstance(length, bool) or not 0 <= length <= sys.maxsize:
        msg = f"a sampler's length must be an int of at least 0, found {length!r}."
        raise OptionError(msg)
    return length
