"""Strategies: how a loader learns its rank, and the sampler and seed that follow.

    None, "auto", "unified"   a rank of the process group if one is up, else alone
    "simple"                  never shared, also under a process group
    "distributed"             shared; an error where rank and world size are not known

An explicit rank and world_size always win over detection and need no process group.
"""

from __future__ import annotations

from collections.abc import Sized

import torch
import torch.distributed as dist

from dataporter.errors import OptionError, TopologyError
from dataporter.law import Tail, Topology, located
from dataporter.samplers import (
    JoiningSampler,
    ResumableDistributedSampler,
    ResumableSampler,
    checked_epoch,
    drawn_seed,
    group_topology,
)

# Ranks that cannot talk must agree on a seed without talking.
_AGREED_SEED = 0


class ResumptionStrategy:
    """What all strategies share; `topology` is theirs to decide."""

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        if (rank is None) != (world_size is None):
            given, missing = (
                ("rank", "world_size") if world_size is None else ("world_size", "rank")
            )
            value = rank if world_size is None else world_size
            msg = f"{given}={value} was given without {missing}. Give both, or neither."
            raise OptionError(msg)
        self._given: Topology | None = None
        if rank is not None and world_size is not None:
            self._given = Topology(rank=rank, world_size=world_size)

    def topology(self) -> Topology:
        """This process's rank, and how many there are."""
        raise NotImplementedError

    @property
    def awaits_group(self) -> bool:
        """Whether this is alone, and one of several once a process group comes up."""
        return False

    def choose_seed(self, generator: torch.Generator | None = None) -> int:
        """Choose a seed that every rank of the run agrees on.

        Drawn from torch's global generator, or `generator`. With a process group, rank 0's
        draw is sent to all. Ranks that were only told their numbers cannot talk: for them
        it is 0, as in torch's DistributedSampler.
        """
        if self.topology().world_size == 1:
            return drawn_seed(generator)
        return _AGREED_SEED if group_topology() is None else agreed(drawn_seed(generator))

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
        """Make the sampler of this rank: shared if there are several, else plain.

        With `joins` it is shared later, too, if a process group comes up only then.
        """
        topology = self.topology()
        chosen = self.choose_seed(generator) if seed is None else seed
        if topology.world_size == 1:
            kind = JoiningSampler if joins and self.awaits_group else ResumableSampler
            sampler = kind(data, shuffle=shuffle, seed=chosen)
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
    """Rank 0's seed, on every rank of the process group; all of them have to ask."""
    chosen = [seed]
    dist.broadcast_object_list(chosen, src=0)
    return chosen[0]


class UnifiedResumptionStrategy(ResumptionStrategy):
    """Look for a process group, and be alone without one.

    >>> type(UnifiedResumptionStrategy().create_sampler(10)).__name__
    'ResumableSampler'
    >>> type(UnifiedResumptionStrategy(rank=1, world_size=4).create_sampler(10)).__name__
    'ResumableDistributedSampler'
    """

    def topology(self) -> Topology:
        return self._given or group_topology() or Topology()

    @property
    def awaits_group(self) -> bool:
        return self._given is None and group_topology() is None


class SimpleStrategy(ResumptionStrategy):
    """Be alone, also under a process group."""

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        if rank is not None or world_size is not None:
            msg = (
                "strategy='simple' never shares the data, but "
                f"rank={rank} and world_size={world_size} were given. "
                "Drop them, or use strategy='distributed'."
            )
            raise OptionError(msg)
        super().__init__()

    def topology(self) -> Topology:
        return Topology()


class DistributedStrategy(ResumptionStrategy):
    """Be one of several ranks, or fail."""

    def topology(self) -> Topology:
        found = self._given or group_topology()
        if found is None:
            msg = (
                "strategy='distributed' needs to know its rank: no process group is up, and no "
                "rank and world_size were given. Call torch.distributed.init_process_group() "
                "before building the loader, or pass rank= and world_size=."
            )
            raise TopologyError(msg)
        return found


_STRATEGIES: dict[str | None, type[ResumptionStrategy]] = {
    None: UnifiedResumptionStrategy,
    "auto": UnifiedResumptionStrategy,
    "unified": UnifiedResumptionStrategy,
    "simple": SimpleStrategy,
    "distributed": DistributedStrategy,
}


def resolve_strategy(
    name: str | None, rank: int | None = None, world_size: int | None = None
) -> ResumptionStrategy:
    """Make the strategy of that name."""
    if not isinstance(name, str | None) or name not in _STRATEGIES:
        names = ", ".join(repr(known) for known in _STRATEGIES)
        msg = f"strategy must be one of {names}, found {name!r}."
        raise OptionError(msg)
    strategy = _STRATEGIES[name](rank, world_size)
    strategy.topology()  # a strategy that cannot work says so now
    return strategy
