"""`PatchedDataLoader`: `ResumableDataLoader` with that loader's defaults.

It has a seed when none is given, and shares the indices of a sampler of the user's own
among ranks too. Nothing of torch is patched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.utils.data import DistributedSampler

from dataporter.arguments import arguments_of
from dataporter.errors import TopologyError
from dataporter.law import Topology
from dataporter.loader.options import LoaderOptions
from dataporter.ranks import find_ranks, group_topology
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import ResumableSampler, is_own
from dataporter.sources.loading import resumption

__all__ = ["PatchedDataLoader"]

Sample_co = TypeVar("Sample_co", covariant=True)

_SEED = 1024


@dataclass(frozen=True, slots=True, eq=False)
class PatchedOptions(LoaderOptions[Sample_co]):
    """The arguments of a `PatchedDataLoader`."""

    seed: int | None = field(default=_SEED, kw_only=True)
    shard_samplers: bool = field(default=True, kw_only=True)


class PatchedDataLoader(ResumableDataLoader[Sample_co]):
    """A `ResumableDataLoader` whose shuffle is the same at every run, on any number of ranks.

    `seed` decides it. With `shard_samplers`, a `sampler` or `batch_sampler` is shared among
    the ranks of a process group that is up when the loader is built (or those that `rank` and
    `world_size` tell of), unless it is one of those that do so themselves.
    The other arguments are those of `ResumableDataLoader`.

    >>> loader = PatchedDataLoader(list(range(15)), batch_size=5, shuffle=True)
    >>> for step, batch in enumerate(loader):
    ...     if step == 2:
    ...         state = loader.state_dict()
    >>> loader.load_state_dict(state)
    >>> len(list(loader)), len(list(loader))
    (0, 3)
    """

    @arguments_of(PatchedOptions[Sample_co])
    def __init__(self, options: PatchedOptions[Sample_co]) -> None:
        sampler, batch_sampler, seed = options.sampler, options.batch_sampler, options.seed
        self._awaits_group_to_shard = False
        if options.shard_samplers and not (sampler is None and batch_sampler is None):
            ranks = find_ranks(options.strategy, options.rank, options.world_size)
            awaits_group = ranks.follow_group and group_topology() is None
            self._awaits_group_to_shard = awaits_group and not any(
                map(_shares_by_itself, (sampler, batch_sampler))
            )
            topology = ranks.topology
            sampler = _sharded(sampler, topology, seed or 0)
            batch_sampler = _sharded(batch_sampler, topology, seed or 0)
        # One of dataporter's samplers has a seed itself.
        own = isinstance(sampler, ResumableSampler) and seed == _SEED
        super().__init__(
            **options.arguments(
                sampler=sampler, batch_sampler=batch_sampler, seed=None if own else seed
            )
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class
        group = group_topology()
        if self._awaits_group_to_shard and group is not None and group.world_size > 1:
            msg = (
                "the sampler is not shared: no process group was up when this loader was built, "
                f"and now there are {group.world_size} ranks, each of which would read all of it. "
                "Build the loader after torch.distributed.init_process_group(), or pass "
                "shard_samplers=False if the sampler shares by itself."
            )
            raise TopologyError(msg)
        return super().__iter__()

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        strict: bool = True,
        *,
        proceed: bool = True,
    ) -> None:
        """Continue where `state_dict` was taken; with `proceed=False`, at its epoch's start."""
        at = resumption(self._source, state_dict, strict=strict)
        if not proceed:
            at = at._replace(progress=self._source.at(at.progress, 0))
        self._go_on(at)


class _Sharded:
    """The share of a rank in a sampler: every W-th index, padded to the same number for all."""

    def __init__(self, sampler: Iterable[Any], rank: int, num_replicas: int) -> None:
        self.sampler = sampler
        self.rank = rank
        self.num_replicas = num_replicas

    def __iter__(self) -> Iterator[Any]:
        first: list[Any] = []
        step: list[Any] = []
        for drawn in self.sampler:
            if len(first) < self.num_replicas:
                first.append(drawn)
            step.append(drawn)
            if len(step) == self.num_replicas:
                yield step[self.rank]
                step = []
        if step:
            yield (step + first * self.num_replicas)[self.rank]

    def __len__(self) -> int:
        length: int = len(self.sampler)  # type: ignore[arg-type]  # a TypeError where it has none
        return (length + self.num_replicas - 1) // self.num_replicas


def _sharded(sampler: Any, topology: Topology, seed: int) -> Any:
    """A sampler's share of this rank; as it is where it shares by itself or there is one rank."""
    if sampler is None or topology.world_size == 1 or _shares_by_itself(sampler):
        return sampler
    if is_own(sampler):
        sampler.share_with(topology, seed)  # itself: its owner may tell it the epoch
        return sampler
    return _Sharded(sampler, topology.rank, topology.world_size)


def _shares_by_itself(sampler: Any) -> bool:
    parts = (sampler, getattr(sampler, "sampler", None))
    if is_own(sampler) and sampler.topology.world_size > 1:
        return True
    return any(
        isinstance(part, DistributedSampler) or hasattr(part, "num_replicas") for part in parts
    )
