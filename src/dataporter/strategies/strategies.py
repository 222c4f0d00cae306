"""Strategies by their documented names: faces of `dataporter.ranks`, which finds a run's ranks.

    None, "auto", "unified"   one of the ranks that share the data, else a single process
    "simple"                  all data in this process, even under a process group
    "distributed"             shared data; an error if rank and world size are unknown

An explicit rank and world_size override detection and need no process group.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import ClassVar

import torch

from dataporter.errors import OptionError
from dataporter.law import Ranks, Tail, Topology, located
from dataporter.law.keys import checked_epoch
from dataporter.ranks import Strategy, choose_seed, find_ranks, given_ranks
from dataporter.samplers import ResumableDistributedSampler, ResumableSampler


class ResumptionStrategy:
    """Base of all strategies. They find the ranks anew whenever they are asked."""

    name: ClassVar[Strategy] = "unified"

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        given_ranks(self.name, rank, world_size)
        self._given = rank, world_size

    def ranks(self) -> Ranks:
        """Return the ranks that share the data."""
        return find_ranks(self.name, *self._given)

    def topology(self) -> Topology:
        """Return this process's rank and the world size."""
        return self.ranks().topology

    def choose_seed(self, generator: torch.Generator | None = None) -> int:
        """Choose a seed that every rank of the run agrees on, as `ranks.choose_seed` does."""
        return choose_seed(self.ranks(), generator)

    def create_sampler(
        self,
        data: Sized | int,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        tail: Tail = "pad",
        generator: torch.Generator | None = None,
    ) -> ResumableSampler:
        """Make this rank's sampler: shared if there are several ranks, else plain."""
        topology = self.topology()
        chosen = self.choose_seed(generator) if seed is None else seed
        sampler: ResumableSampler
        if topology.world_size == 1:
            sampler = ResumableSampler(data, shuffle=shuffle, seed=chosen)
            sampler.tail = tail
        else:
            sampler = ResumableDistributedSampler(
                data,
                num_replicas=topology.world_size,
                rank=topology.rank,
                shuffle=shuffle,
                seed=chosen,
                tail=tail,
            )
        sampler.shared.seed_is_given = seed is not None
        return sampler

    def locate(self, epoch: int, samples: int, length: int) -> tuple[int, int]:
        """Turn a count of samples since the start of `epoch` into an epoch and a position.

        >>> UnifiedResumptionStrategy().locate(epoch=2, samples=250, length=100)
        (4, 50)
        """
        checked_epoch(epoch)
        if length < 1 or samples < 0:
            msg = (
                "samples must be at least 0 and length at least 1, "
                f"found samples={samples}, length={length}."
            )
            raise OptionError(msg)
        return located(epoch, samples, length)


class UnifiedResumptionStrategy(ResumptionStrategy):
    """Shares the data if there is a process group, and otherwise reads all of it.

    >>> type(UnifiedResumptionStrategy().create_sampler(10)).__name__
    'ResumableSampler'
    >>> type(UnifiedResumptionStrategy(rank=1, world_size=4).create_sampler(10)).__name__
    'ResumableDistributedSampler'
    """


class SimpleStrategy(ResumptionStrategy):
    """Reads all data in this process, even under a process group."""

    name = "simple"


class DistributedStrategy(ResumptionStrategy):
    """Shares the data among ranks, and raises if the rank is unknown."""

    name = "distributed"


def resolve_strategy(
    name: Strategy | None, rank: int | None = None, world_size: int | None = None
) -> ResumptionStrategy:
    """Make the strategy of that name; raise if the rank is unknown."""
    find_ranks(name, rank, world_size)
    strategies = (SimpleStrategy, DistributedStrategy, UnifiedResumptionStrategy)
    named: dict[str | None, type[ResumptionStrategy]] = {each.name: each for each in strategies}
    return named.get(name, UnifiedResumptionStrategy)(rank, world_size)
