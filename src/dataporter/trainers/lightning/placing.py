"""Moving a trainer's loaders to a position after the trainer has started to iterate over them.

Of several loaders a count of batches is not enough. A loader that has ended may start again, or
deliver nothing while others continue. If one has no length, Lightning fetches one batch ahead, and
the last fetch of an epoch fails after some of the loaders have already delivered. So the states of
all loaders are recorded before each fetch. After a resume, fetches that were not trained on are
made again from there, with the same result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dataporter.law.rest import excluded_in, rest_of
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import is_own
from dataporter.trainers.lightning import loops
from dataporter.trainers.lightning.framework import Trainer

State: TypeAlias = Any  # a loader's state, or the list of those of all ranks


def place(trainer: Trainer, loader: Any, state: State, epoch: int, *, continues: bool) -> None:
    """Make a trainer's loader continue within `epoch`, or start `epoch` after an earlier one."""
    if is_seekable(loader):
        # The running pass moves to the state. Otherwise it would see at its next batch that the
        # trainer has called set_epoch on the sampler, and the next pass would repeat this epoch.
        continue_from(loader, state)
        if not continues:  # the load before was only a check of the state
            loader.seek(epoch)
        return
    if not isinstance(loader, ResumableDataLoader):
        if continues:
            loader.load_state_dict(state)
    elif continues:
        continue_from(loader, state)
    else:
        _skip_to_next_epoch(loader, state)
    loops.begin_passes(trainer)


def continue_from(loader: ResumableDataLoader[Any], state: State) -> None:
    """Make the next pass continue from a state. It is empty if the state is at an epoch's end."""
    loader.load_state_dict(state)
    loader.set_epoch(loader.epoch)  # otherwise a finished epoch would be followed by the next


def is_seekable(loader: object) -> bool:
    """Return True if a loader's place in its epoch is given by a position alone."""
    if not isinstance(loader, ResumableDataLoader) or not is_own(loader.sampler):
        return False
    return "lanes" not in loader.state_dict()


def batches_done(trainer: Trainer, loaders: Sequence[Any], states: Sequence[State]) -> int | None:
    """Return the finished batches of the epoch in the present batch size, or None if unchanged."""
    moved = [
        loader
        for loader, state in zip(loaders, states, strict=True)
        if is_seekable(loader) and _size(state) != _size(loader.state_dict())
    ]
    if not moved or trainer.num_training_batches == float("inf"):
        return None  # the same batches as before, or an unknown number
    choose = min if loops.ends_with_the_shortest(trainer) else max
    loader = choose(moved, key=len)
    return len(loader) - _batches_left(loader)


def _size(state: Mapping[str, Any]) -> tuple[Any, Any]:
    return state["batch_size"], state["world_size"]


def _batches_left(loader: ResumableDataLoader[Any]) -> int:
    plan: Any = loader.plan  # of a loader that has an order
    state = loader.state_dict()
    excluded = excluded_in(state["excluded"], state["epoch"])
    ahead = tuple(map(tuple, state["ahead"]))
    return rest_of(plan, state["samples_processed"], ahead, excluded).num_batches


def _skip_to_next_epoch(loader: ResumableDataLoader[Any], state: State) -> None:
    """Make the next pass start the epoch after a state's, even if that epoch is unfinished."""
    loader.load_state_dict(state)
    if not loader.state_dict()["finished"]:
        iter(loader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The states of all loaders of a trainer at one moment."""

    states: list[Any]  # of the loaders that have one
    ended: list[bool]  # True for each loader that has ended in this epoch; empty if unknown


def record_fetches(trainer: Trainer) -> RecordedFetches | None:
    """Record the states before each fetch from now on, if there are several loaders."""
    if not loops.has_several(trainer):
        return None
    fetcher = loops.fetcher_of(trainer)
    if not isinstance(fetcher.combined_loader, RecordedFetches):
        recorded = RecordedFetches(fetcher, loops.stateful_loaders(trainer))
        fetcher.setup(recorded)
        fetcher.iterator = recorded
    return fetcher.combined_loader  # type: ignore[no-any-return]


class RecordedFetches(Iterator[Any]):
    """A wrapper of a fetcher's `CombinedLoader` that records the states before each fetch."""

    def __init__(self, fetcher: Any, loaders: list[Any]) -> None:
        self._fetcher = fetcher
        self._combined = fetcher.combined_loader
        self._loaders = loaders
        self._counts = loops.fetches_by_itself(fetcher)
        self._ended: list[bool] = []  # for the next passes
        self._begin()
        if self._counts and fetcher.length is None:
            self._snapshots.append(Snapshot(states=[_start_of(each) for each in loaders], ended=[]))
            self._fetches = 1
        # In a run's first epoch, Lightning calls set_epoch after it has started to iterate.
        self._epoch_is_set_late = True

    def _begin(self) -> None:
        self._snapshots: deque[Snapshot] = deque(maxlen=2)  # before the last fetches
        self._fetches = 0  # including failed ones
        self._first: int | None = None  # the number of the first fetched batch within its epoch
        self._epoch_is_set_late = False

    def __iter__(self) -> RecordedFetches:
        iter(self._combined)
        ended = loops.ended(self._combined)
        if len(ended) == len(self._ended):
            ended[:] = self._ended
        self._ended = []
        self._begin()
        return self

    def __next__(self) -> Any:
        if self._epoch_is_set_late:
            self._epoch_is_set_late = False
            for loader in self._loaders:
                if isinstance(loader, ResumableDataLoader) and loops.epoch_samplers(loader):
                    continue_from(
                        loader, loader.state_dict()
                    )  # or the next pass would repeat the epoch
        self._snapshots.append(self._present())
        self._fetches += 1
        return next(self._combined)

    def __len__(self) -> int:
        return len(self._combined)

    def reset(self) -> None:
        """End all passes, as Lightning does after training. Recorded states are kept."""
        self._combined.reset()

    def begin_at(self, batch: int) -> None:
        """Record the number of the batch that is trained on now."""
        if self._first is None:
            self._first = batch

    def unused(self, trained: int) -> Snapshot:
        """Return the states after the epoch's `trained` batches, before all later fetches."""
        used = 0 if self._first is None else trained - self._first
        unused = self._fetches - used if self._counts else 0
        return self._snapshots[-unused] if unused else self._present()

    def place(self, trainer: Trainer, snapshot: Snapshot, epoch: int, *, continues: bool) -> None:
        """Make the loaders continue within `epoch`, or start `epoch` after an earlier one."""
        self._load(snapshot.states)
        self._ended = snapshot.ended
        iter(self._fetcher)
        # If Lightning requests new loaders in each epoch, it starts two passes over them.
        asks = loops.asks_for_loaders(trainer)
        if not continues:
            if asks:
                iter(self._fetcher)
            for loader in self._combined.flattened:
                for sampler in loops.epoch_samplers(loader):
                    sampler.set_epoch(epoch)
            iter(self._fetcher)
        if asks:  # the pass that it is about to start must be this one
            self._load(self.unused(trained=0).states)
        self._epoch_is_set_late = True

    def _load(self, states: list[Any]) -> None:
        for loader, state in zip(self._loaders, states, strict=True):
            if isinstance(loader, ResumableDataLoader):
                continue_from(loader, state)
            else:
                loader.load_state_dict(state)

    def _present(self) -> Snapshot:
        states = [loader.state_dict() for loader in self._loaders]
        return Snapshot(states=states, ended=list(loops.ended(self._combined)))


def _start_of(loader: Any) -> Any:
    """Return a loader's state before the one batch that it may have delivered."""
    is_ours = isinstance(loader, ResumableDataLoader)
    return loader.state_dict(unused=1) if is_ours else loader.state_dict()
