"""Strategies: find a loader's rank, and choose its sampler and seed.

    None, "auto", "unified"   one of the ranks that share the data (`ranks`), else a single process
    "simple"                  all data in this process, even under a process group
    "distributed"             shared data; an error if rank and world size are unknown

An explicit rank and world_size override detection and need no process group.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist

from dataporter.errors import OptionError, TopologyError
from dataporter.law import Tail, Topology, located
from dataporter.law.keys import checked_epoch
from dataporter.ranks import data_topology, group_topology
from dataporter.samplers import (
    JoiningSampler,
    ResumableDistributedSampler,
    ResumableSampler,
    drawn_seed,
)

Strategy: TypeAlias = Literal["auto", "unified", "simple", "distributed"]

# The seed of ranks that have no process group to agree on one.
_AGREED_SEED = 0


class ResumptionStrategy:
    """Base of all strategies. Subclasses define `topology`."""

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        if (rank is None) != (world_size is None):
            given, missing = (
                ("rank", "world_size") if world_size is None else ("world_size", "rank")
            )
            value = rank if world_size is None else world_size
            msg = f"{given}={value} was given without {missing}. Pass both or neither."
            raise OptionError(msg)
        self._given: Topology | None = None
        if rank is not None and world_size is not None:
            self._given = Topology(rank=rank, world_size=world_size)

    def topology(self) -> Topology:
        """Return this process's rank and the world size."""
        raise NotImplementedError

    @property
    def follows_group(self) -> bool:
        """True if the process group decides who shares the data, whatever becomes of it."""
        return False

    @property
    def awaits_group(self) -> bool:
        """True if the data will be shared once a process group is initialized."""
        return self.follows_group and group_topology() is None

    @property
    def seed_awaits_group(self) -> bool:
        """True if a drawn seed is to be agreed on once a process group is initialized.

        Not that of `SimpleStrategy`: one rank alone may iterate over such a loader, as for
        validation, and would wait for the others.
        """
        is_alone = self.follows_group or self._given == Topology()
        return is_alone and group_topology() is None

    def choose_seed(self, generator: torch.Generator | None = None) -> int:
        """Choose a seed that every rank of the run agrees on.

        It is drawn from `generator`, by default torch's global one. With a process group, rank
        0 sends its seed to all ranks, also where each reads all data: processes that work on one
        model, as in tensor parallelism, need the same batches. Ranks given by number alone cannot
        communicate and use 0, as torch's DistributedSampler does.
        """
        group = group_topology()
        if group is not None and group.world_size > 1:
            return agreed(drawn_seed(generator))
        return drawn_seed(generator) if self.topology().world_size == 1 else _AGREED_SEED

    def create_sampler(
        self,
        data: Sized | int,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        tail: Tail = "pad",
        generator: torch.Generator | None = None,
        joins: bool = False,
    ) -> ResumableSampler:
        """Make this rank's sampler: shared if there are several ranks, else plain.

        With `joins` the sampler is a loader's: trainers leave it alone, and it follows the ranks
        that share the data as long as the process group decides it.
        """
        topology = self.topology()
        chosen = self.choose_seed(generator) if seed is None else seed
        sampler: ResumableSampler
        if joins and self.follows_group:
            sampler = JoiningSampler(data, shuffle=shuffle, seed=chosen)
            sampler.share_with(topology, chosen)
            sampler.tail = tail
        elif topology.world_size == 1 and not joins:
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
        sampler.seed_is_given = seed is not None
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


def agreed(seed: int) -> int:
    """Return rank 0's seed on every rank. All ranks of the process group must call this."""
    chosen = [seed]
    dist.broadcast_object_list(chosen, src=0)
    return chosen[0]


class UnifiedResumptionStrategy(ResumptionStrategy):
    """Shares the data if there is a process group, and otherwise reads all of it.

    >>> type(UnifiedResumptionStrategy().create_sampler(10)).__name__
    'ResumableSampler'
    >>> type(UnifiedResumptionStrategy(rank=1, world_size=4).create_sampler(10)).__name__
    'ResumableDistributedSampler'
    """

    def topology(self) -> Topology:
        return self._given or data_topology() or Topology()

    @property
    def follows_group(self) -> bool:
        return self._given is None


class SimpleStrategy(ResumptionStrategy):
    """Reads all data in this process, even under a process group."""

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        if rank is not None or world_size is not None:
            msg = (
                f"strategy='simple' conflicts with rank={rank} and world_size={world_size}: it "
                "never shares the data. Remove them, or use strategy='distributed'."
            )
            raise OptionError(msg)
        super().__init__()

    def topology(self) -> Topology:
        return Topology()


class DistributedStrategy(ResumptionStrategy):
    """Shares the data among ranks, and raises if the rank is unknown."""

    def topology(self) -> Topology:
        found = self._given or data_topology()
        if found is None:
            msg = (
                "strategy='distributed' requires a rank, but no process group is initialized and "
                "no rank and world_size were given. Call torch.distributed.init_process_group() "
                "before building the loader, or pass rank= and world_size=."
            )
            raise TopologyError(msg)
        return found

    @property
    def follows_group(self) -> bool:
        return self._given is None


_STRATEGIES: dict[Strategy | None, type[ResumptionStrategy]] = {
    None: UnifiedResumptionStrategy,
    "auto": UnifiedResumptionStrategy,
    "unified": UnifiedResumptionStrategy,
    "simple": SimpleStrategy,
    "distributed": DistributedStrategy,
}


def resolve_strategy(
    name: Strategy | None, rank: int | None = None, world_size: int | None = None
) -> ResumptionStrategy:
    """Make the strategy of that name."""
    if not isinstance(name, str | None) or name not in _STRATEGIES:
        names = ", ".join(repr(known) for known in _STRATEGIES)
        msg = f"strategy must be one of {names}, found {name!r}."
        raise OptionError(msg)
    strategy = _STRATEGIES[name](rank, world_size)
    strategy.topology()  # raise now if the rank is unknown
    return strategy
