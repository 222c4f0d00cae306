"""Several loaders: where each of them stood before each fetch.

To fetch from several is more than to count. A loader that has come to its end may begin anew,
or deliver nothing while others go on. Where one has no length, Lightning fetches one batch ahead
of the one that is trained on, and the last fetch of an epoch fails when some of the loaders have
delivered for it. So it is noted before each fetch where all of them stand. After a resume, the
fetches that were not trained on are made again from there, and end as they did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.trainers.lightning import loops
from dataporter.trainers.lightning.framework import Trainer
from dataporter.trainers.lightning.placing import go_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where all loaders of a trainer stand."""

    states: list[Any]  # of those that have one
    ended: list[bool]  # whether each has come to its end in this epoch, where that is known


def noted_fetches(trainer: Trainer) -> NotedFetches | None:
    """Have fetches noted from now on, if there are several loaders."""
    if not loops.has_several(trainer):
        return None
    fetcher: Any = trainer.fit_loop._data_fetcher  # noqa: SLF001
    if not isinstance(fetcher.combined_loader, NotedFetches):
        noted = NotedFetches(fetcher, loops.stateful_loaders(trainer))
        fetcher.setup(noted)
        fetcher.iterator = noted
    return fetcher.combined_loader  # type: ignore[no-any-return]


class NotedFetches(Iterator[Any]):
    """What a fetcher that has just begun fetches from, in place of its `CombinedLoader`."""

    def __init__(self, fetcher: Any, loaders: list[Any]) -> None:
        self._fetcher = fetcher
        self._combined = fetcher.combined_loader
        self._loaders = loaders
        self._counts = loops.fetches_by_itself(fetcher)
        self._ended: list[bool] = []  # what the next passes begin with
        self._begin()
        if self._counts and fetcher.length is None:
            self._moments.append(Moment(states=[_start_of(each) for each in loaders], ended=[]))
            self._fetches = 1
        # Of a run's first epoch, Lightning tells samplers when it has begun to iterate.
        self._is_told_late = True

    def _begin(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=2)  # before the last fetches
        self._fetches = 0  # those that failed too
        self._first: int | None = None  # the number in its epoch of the first batch fetched
        self._is_told_late = False

    def __iter__(self) -> NotedFetches:
        iter(self._combined)
        ended = loops.ended(self._combined)
        if len(ended) == len(self._ended):
            ended[:] = self._ended
        self._ended = []
        self._begin()
        return self

    def __next__(self) -> Any:
        if self._is_told_late:
            self._is_told_late = False
            for loader in self._loaders:
                if isinstance(loader, ResumableDataLoader) and loops.told_samplers(loader):
                    go_on(loader, loader.state_dict())  # else its next pass would be that epoch's
        self._moments.append(self._present())
        self._fetches += 1
        return next(self._combined)

    def __len__(self) -> int:
        return len(self._combined)

    def reset(self) -> None:
        """End all passes, as Lightning does after training. What was noted stays."""
        self._combined.reset()

    def begin_at(self, batch: int) -> None:
        """Take note of the number of a batch that is trained on now."""
        if self._first is None:
            self._first = batch

    def unused(self, trained: int) -> Moment:
        """Where the loaders stood before what was fetched beyond the epoch's `trained` batches."""
        used = 0 if self._first is None else trained - self._first
        unused = self._fetches - used if self._counts else 0
        return self._moments[-unused] if unused else self._present()

    def place(self, trainer: Trainer, moment: Moment, epoch: int, *, goes_on: bool) -> None:
        """Have loaders go on where they stood in `epoch`, or begin it after an earlier one."""
        self._load(moment.states)
        self._ended = moment.ended
        iter(self._fetcher)
        # Where Lightning asks for the loaders in each epoch, it begins two passes over them.
        asks = loops.asks_for_loaders(trainer)
        if not goes_on:
            if asks:
                iter(self._fetcher)
            for loader in self._combined.flattened:
                for sampler in loops.told_samplers(loader):
                    sampler.set_epoch(epoch)
            iter(self._fetcher)
        if asks:  # the one that it is about to begin is to be this one
            self._load(self.unused(trained=0).states)
        self._is_told_late = True

    def _load(self, states: list[Any]) -> None:
        for loader, state in zip(self._loaders, states, strict=True):
            if isinstance(loader, ResumableDataLoader):
                go_on(loader, state)
            else:
                loader.load_state_dict(state)

    def _present(self) -> Moment:
        states = [loader.state_dict() for loader in self._loaders]
        return Moment(states=states, ended=list(loops.ended(self._combined)))


def _start_of(loader: Any) -> Any:
    """The state of a loader before the one batch that it may have delivered."""
    is_ours = isinstance(loader, ResumableDataLoader)
    return loader.state_dict(unused=1) if is_ours else loader.state_dict()
