"""Torch samplers over the orders of `law`, with a state that can be saved and loaded.

`ResumableSampler` and `ResumableDistributedSampler` also work in a plain torch `DataLoader`.
A sampler counts the indices that were *drawn*. A torch loader with workers draws ahead of
what it delivers, so pass the number of batches you received:
`state_dict(batches=..., batch_size=...)` is correct with and without workers. Without these
arguments a state taken under such a loader warns. `ResumableDataLoader` counts by itself.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, TypeGuard

from numpy.typing import ArrayLike
from torch.utils.data import DistributedSampler, Sampler

from dataporter.arguments import check_int
from dataporter.callers import is_told_by_wrapper, torchs_iterator
from dataporter.errors import (
    DrawnAheadWarning,
    OptionError,
    OptionTypeError,
    PositionDroppedWarning,
    StateError,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    TopologyError,
)
from dataporter.law import Order, Plan, Ranks, Tail, Topology
from dataporter.law.epochs import Place
from dataporter.law.keys import checked_epoch, checked_seed
from dataporter.law.shared_order import SharedOrder
from dataporter.law.state import Progress, dropped, past_the_end, within
from dataporter.ranks import check_who_shares, data_topology, drawn_seed
from dataporter.user_warnings import warn_user


@dataclass(slots=True, kw_only=True)
class _Pass:
    """One pass over a sampler: its start position and the number of indices drawn since."""

    epoch: int = 0
    start: int = 0
    drawn: int = 0
    begun: bool = False
    loaded: bool = False


class ResumableSampler(Sampler[int]):
    """A sampler of dataset indices: sequential, shuffled or weighted, from any position.

    `data` is a dataset or its length. Without a seed, one is drawn from torch's global
    generator. Every pass is the next epoch, unless `set_epoch` or `load_state_dict` has set
    another one.

    >>> sampler = ResumableSampler(6, shuffle=True, seed=1)
    >>> drawing = iter(sampler)
    >>> start = [next(drawing) for _ in range(4)]
    >>> state = sampler.state_dict()
    >>> resumed = ResumableSampler(6, shuffle=True, seed=1)
    >>> resumed.load_state_dict(state)
    >>> sorted(start + list(resumed))
    [0, 1, 2, 3, 4, 5]

    With torch's own loader, pass the number of batches received in this pass:

    >>> import torch
    >>> loader = torch.utils.data.DataLoader(range(6), batch_size=2, sampler=sampler)
    >>> for step, batch in enumerate(loader, start=1):
    ...     state = sampler.state_dict(batches=step, batch_size=2)
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        weights: ArrayLike | None = None,
        replacement: bool = True,
        num_samples: int | None = None,
    ) -> None:
        shared = SharedOrder(
            data,
            Ranks(Topology()),
            shuffle=shuffle,
            seed=drawn_seed() if seed is None else checked_seed(seed, optional=True),
            seed_is_given=seed is not None,
            weights=weights,
            replacement=replacement,
            num_samples=num_samples,
        )
        self._show(shared)

    def _show(self, shared: SharedOrder) -> None:
        self.shared = shared
        self.tail: Tail = "pad"
        self._pass = _Pass()
        self.times_set = 0  # how often set_epoch was called
        self._drawn_by: weakref.ref[Any] | None = None  # torch's iterator, if it draws ahead
        # Of the loader that reads the order without drawing from here, and counts by itself.
        self._place: Place | None = None

    @property
    def is_positioned(self) -> bool:
        """True if a position was loaded and no pass has started from it yet."""
        loaded = self._pass.epoch, self._pass.start
        is_there = self._place is None or _place_after(self._place.progress) == loaded
        return self._pass.loaded and not self._pass.begun and is_there

    @property
    def topology(self) -> Topology:
        """Rank and world size of this sampler's share."""
        return self.shared.topology

    @property
    def order(self) -> Order:
        """The mapping from position to dataset index, over all ranks."""
        return self.shared.order

    @property
    def shuffle(self) -> bool:
        return self.shared.shuffle

    @property
    def seed(self) -> int:
        return self.shared.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.shared.seed = seed

    @property
    def seed_is_given(self) -> bool:
        """True if the user has set the seed, False if it was drawn."""
        return self.shared.seed_is_given

    @property
    def epoch(self) -> int:
        """The epoch of the current pass, or of the first pass if none has started."""
        return self._pass.epoch

    def share_with(self, topology: Topology, seed: int) -> None:
        """Become one rank's share. Use `seed` unless the user has set one."""
        self.shared.ranks = Ranks(topology)
        if not self.seed_is_given:
            self.seed = seed

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass use `epoch`. A position loaded for that epoch is kept.

        For another epoch it is dropped, with a warning. A trainer's wrapper that tells its own
        count of passes is not followed: passes are counted here, from the loaded one on.
        """
        epoch = checked_epoch(epoch)
        if is_told_by_wrapper():
            return
        if self._place is None or self._place.mover is None:  # else the loader warns
            self._warn_if_dropped(epoch)
            self._place = None
        self._go_to(epoch)

    def read_at(self, place: Place, epoch: int) -> None:
        """Take note that a loader reads this order in `epoch`: positions are its from now on."""
        self._place = place
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        self.times_set += 1
        if epoch != self._pass.epoch or self._pass.begun:
            self._pass = _Pass(epoch=epoch)

    def _warn_if_dropped(self, epoch: int) -> None:
        start, length = self._pass, self.order.length
        is_followed = start.start == length and start.epoch + 1 == epoch
        if not self.is_positioned or start.epoch == epoch or is_followed:
            return
        at = Progress(epoch=start.epoch, samples_processed=start.start)
        warn_user(dropped(at, epoch, counts="sampler.epoch", instead=""), PositionDroppedWarning)

    def __iter__(self) -> Iterator[int]:
        self._place = None
        if self._pass.begun:
            self._pass = _Pass(epoch=self._pass.epoch + 1)
        self._pass.begun = True
        self._drawn_by = torchs_iterator()
        return self._draw(self._pass)

    def _draw(self, current: _Pass) -> Iterator[int]:
        for positions in self._plan().blocks(current.start):
            for index in self.order.indices(current.epoch, positions).tolist():
                current.drawn += 1
                yield index

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn_by": None}  # nobody draws from a copy yet

    def __len__(self) -> int:
        return self._plan().num_samples()

    def _plan(self) -> Plan:
        return Plan(length=self.order.length, batch_size=1, topology=self.topology, tail=self.tail)

    def state_dict(
        self,
        consumed: int | None = None,
        *,
        batches: int | None = None,
        batch_size: int | None = None,
    ) -> dict[str, Any]:
        """Return the position of this pass. It can be loaded on any number of ranks.

        If a `ResumableDataLoader` reads this sampler, that is the position after the batch it has
        delivered last. Iterating over the sampler itself begins a pass of its own.

        `batches` is the number of batches of `batch_size` that this rank has received since
        `iter(loader)`. Alternatively `consumed` is the number of samples. One of them is
        required under a torch loader with workers, which draws more than it delivers.
        """
        if (batches is None) != (batch_size is None) or (
            consumed is not None and batches is not None
        ):
            msg = (
                "state_dict() takes batches= and batch_size= together, or consumed= alone; found "
                f"consumed={consumed}, batches={batches}, batch_size={batch_size}."
            )
            raise OptionError(msg)
        if self._place is not None:
            is_counted = consumed is not None or batches is not None
            return self._state_at(*_place_in(self._place.progress, is_counted=is_counted))
        drawn = self._pass.drawn
        if batches is not None and batch_size is not None:
            check_int("batches", batches, least=0)
            check_int("batch_size", batch_size, least=1)
            # The last batch may be a short one.
            consumed = min(batches * batch_size, max(drawn, (batches - 1) * batch_size + 1))
        if consumed is not None and not 0 <= consumed <= drawn:
            found = f"consumed={consumed}" if batches is None else f"{batches} of {batch_size}"
            msg = (
                f"only {drawn} samples were drawn in this pass, found {found}. Count the batches "
                "or samples since iter(loader), also after a resume."
            )
            raise OptionError(msg)
        if consumed is None:
            self._warn_if_drawn_ahead()
        steps = drawn if consumed is None else consumed
        return self._state_at(self.epoch, self._plan().position_after(self._pass.start, steps))

    def _state_at(self, epoch: int, position: int) -> dict[str, Any]:
        return {
            "epoch": epoch,
            "samples_processed": position,
            "seed": self.seed,
            "order": self.order.id,
            "length": self.order.length,
        }

    def _check_length(self, saved: int) -> None:
        if self.order.length != saved:
            msg = (
                f"length changed: the state was saved in an epoch of {saved:,} positions, and an "
                f"epoch that begins now has {self.order.length:,}. Load a state of the loader, "
                "which holds the length of its epoch."
            )
            raise StateMismatchError(msg)

    def _warn_if_drawn_ahead(self) -> None:
        if self._drawn_by is None:
            return
        drawn = self._pass.drawn
        if self._drawn_by() is None and drawn == self._plan().num_samples(self._pass.start):
            return  # all samples were drawn, and the loader's pass is over
        msg = (
            f"the state counts all {drawn} samples drawn in this pass, but torch's DataLoader "
            "draws ahead for its workers. A resume would skip the samples that were not "
            "delivered yet. Pass the number of batches you received: "
            "state_dict(batches=..., batch_size=...). Or use ResumableDataLoader, which counts "
            "them itself."
        )
        warnings.warn(msg, DrawnAheadWarning, stacklevel=3)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue where `state` was taken.

        If a `ResumableDataLoader` reads this sampler, that is its next pass, as by its `seek`.
        """
        wanted = ("epoch", "samples_processed", "seed", "order", "length")
        missing = [name for name in wanted if not isinstance(state, Mapping) or name not in state]
        if missing:
            msg = f"this is not a sampler's state: it is missing {', '.join(missing)}."
            raise StateFormatError(msg)
        order = self.order.resumed(str(state["order"]))
        for name, present in (("length", order.length), ("order", order.id)):
            if state[name] != present:
                msg = (
                    f"{name} changed: the state was saved with {state[name]!r}, this sampler has "
                    f"{present!r}. Build the sampler with the same data and options."
                )
                raise StateMismatchError(msg)
        position, length = state["samples_processed"], self.order.length
        if type(position) is not int or not 0 <= position < 2**63:
            msg = f"samples_processed must be an int in [0, {length}], found {position!r}."
            raise StateFormatError(msg)
        try:
            seed, epoch = checked_seed(state["seed"]), checked_epoch(state["epoch"])
        except (OptionError, OptionTypeError) as error:
            msg = f"the state was changed or damaged after state_dict() returned it: {error}"
            raise StateFormatError(msg) from error
        if self.seed_is_given and seed != self.seed:
            msg = (
                f"seed changed: the state was saved with seed={seed}, this sampler has "
                f"seed={self.seed}. Build the sampler with seed={seed}, or without a seed."
            )
            raise StateMismatchError(msg)
        at = Progress(epoch=epoch, samples_processed=position)
        moved = within(at, length, step=1, same_data=True)
        if moved is not at:
            warnings.warn(past_the_end(at, length, moved), StateMismatchWarning, stacklevel=2)
        reader = None if self._place is None else self._place.mover
        if reader is None:
            self._place = None
        else:
            reader.seek(moved.epoch, moved.samples_processed)
            self._check_length(state["length"])
        self.shared.order = order.continued(moved.epoch, moved.samples_processed)
        self.seed = seed
        self._pass = _Pass(epoch=moved.epoch, start=moved.samples_processed, loaded=True)


def _place_in(progress: Progress, *, is_counted: bool) -> tuple[int, int]:
    """Return the epoch and the position that a loader has delivered up to."""
    if is_counted:
        msg = (
            "a ResumableDataLoader reads this sampler and counts what it delivers. Call "
            "state_dict() without consumed= or batches=."
        )
        raise OptionError(msg)
    if progress.ahead:
        msg = (
            "in_order=False: batches were delivered before their turn, and a sampler's state is "
            "one position. Save loader.state_dict(), which has them all."
        )
        raise StateError(msg)
    return _place_after(progress)


def _place_after(progress: Progress) -> tuple[int, int]:
    """Return the epoch and the position at which a pass goes on."""
    if progress.finished:
        return progress.epoch + 1, 0
    return progress.epoch, progress.samples_processed


# Inherits from DistributedSampler only to be recognised: trainers wrap every other sampler in
# one of their own.
class ResumableDistributedSampler(ResumableSampler, DistributedSampler[int]):  # type: ignore[override]
    """One rank's share of a `ResumableSampler`.

    Rank and number of ranks come from the process group unless they are given. The state is
    the same on all ranks and can be loaded on any number of ranks.

    >>> ranks = [ResumableDistributedSampler(6, num_replicas=2, rank=r, seed=1) for r in (0, 1)]
    >>> [list(sampler) for sampler in ranks]
    [[0, 2, 4], [1, 3, 5]]
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        tail: Tail = "pad",
        weights: ArrayLike | None = None,
        replacement: bool = True,
        num_samples: int | None = None,
    ) -> None:
        super().__init__(
            data,
            shuffle=shuffle,
            seed=seed,
            weights=weights,
            replacement=replacement,
            num_samples=num_samples,
        )
        if rank is None or num_replicas is None:
            check_who_shares()
        group = data_topology()
        if group is None and (rank is None or num_replicas is None):
            msg = (
                "no process group is initialized. Call torch.distributed.init_process_group() "
                "before building a ResumableDistributedSampler, or pass rank= and num_replicas=."
            )
            raise TopologyError(msg)
        group = group or Topology()
        self.shared.ranks = Ranks(
            Topology(
                rank=group.rank if rank is None else rank,
                world_size=group.world_size if num_replicas is None else num_replicas,
            )
        )
        self.tail = tail
        self._plan()  # checks the tail

    @classmethod
    def of(cls, shared: SharedOrder, tail: Tail) -> ResumableDistributedSampler:
        """Return a loader's sampler: an order and its ranks, as they are at any moment."""
        sampler = cls.__new__(cls)
        sampler._show(shared)  # noqa: SLF001  another way to begin
        sampler.tail = tail
        return sampler

    @property
    def rank(self) -> int:  # type: ignore[override]
        return self.topology.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        return self.topology.world_size


def is_own(sampler: object) -> TypeGuard[ResumableSampler]:
    """Return True if a sampler draws from its `order`, so that a plan can replace it."""
    return (
        isinstance(sampler, ResumableSampler)
        and type(sampler).__iter__ is ResumableSampler.__iter__
    )
