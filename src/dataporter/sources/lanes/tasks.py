"""Tasks of lanes: whose turn it is, and where every lane stands once a batch is delivered.

Lanes take turns, those that have ended are left out. So the order of batches does not
depend on who reads which lane, or how far ahead. Only where batches may come in any order,
the turn is that of the lane of which the fewest are on their way.
"""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from dataporter.errors import LengthWarning
from dataporter.fetch import EMPTY, Failed
from dataporter.fetch.randomness import Stream
from dataporter.law.lane_states import Lanes, LaneState
from dataporter.law.state import Progress
from dataporter.sources.lanes.fetcher import LaneBatch, LaneOrder
from dataporter.sources.lanes.lane import Start
from dataporter.sources.tasks import Task, Tasks

_NO_POSITIONS = np.empty(0, np.int64)

# Begins lanes that are read in this process.
Open: TypeAlias = Callable[[Mapping[int, Start], Stream], Mapping[int, bytes | None]]


class Turns:
    """The tasks of an iterable, as far as they are known beforehand: one after another."""

    def __init__(
        self, dataset: Any, *, batch_size: int, drop_last: bool, has_workers: bool
    ) -> None:
        self._dataset = dataset
        self._size = batch_size
        self._drop_last = drop_last
        self._has_workers = has_workers
        self._length: int | None = None  # of the dataset, once somebody has asked for it
        self._too_long = ""  # what there is to say of a longer one

    def fresh(self, epoch: int) -> Progress:
        return Progress(epoch=epoch)

    def restore(self, progress: Progress) -> None:
        pass

    def undo_restore(self) -> None:
        pass

    def settle(self, progress: Progress) -> None:
        pass

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        # What a batch leads to is known when it is there.
        return itertools.repeat(
            Task(None, _NO_POSITIONS, Stream(seed, progress.epoch), progress)  # type: ignore[arg-type]  # no indices
        )

    def end(self, progress: Progress) -> Progress:
        return replace(progress, finished=True)

    def num_batches(self) -> int:
        """Count as torch does; a TypeError where the dataset does not say how long it is."""
        self._length, self._too_long = len(self._dataset), ""
        whole, rest = divmod(self._length, self._size)
        return whole + (rest > 0 and not self._drop_last)

    def check_length(self, samples: int) -> None:
        """Warn, as torch does, of more samples than were said to be there when it was asked.

        In the same words at every batch, so that Python shows them once.
        """
        if self._length is None or samples <= self._length:
            return
        if not self._too_long:
            self._too_long = (
                f"Length of IterableDataset {self._dataset} was reported to be {self._length} "
                f"(when accessing len(dataloader)), but {samples} samples have been fetched. "
            )
            if self._has_workers:
                self._too_long += (
                    "For multiprocessing data-loading, this could be caused by not properly "
                    "configuring the IterableDataset replica at each worker. Please see "
                    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset "
                    "for examples."
                )
        warnings.warn(self._too_long, LengthWarning, stacklevel=2)


class LaneTasks:
    """Shares tasks out to lanes.

    `inner` are the tasks of all lanes together. `carries` if a lane's dataset goes on from
    epoch to epoch, as it does unless workers are started anew for each. `stateful` if it has a
    state, which is then in that of an iterator that is the dataset itself.
    """

    def __init__(
        self,
        inner: Tasks,
        *,
        lanes: Lanes,
        iterable: bool,
        stateful: bool,
        carries: bool,
        in_order: bool,
        snapshot_every: int,
    ) -> None:
        self._inner = inner
        self._in_order = in_order
        self._iterable = iterable
        self._stateful = stateful
        self._carries = carries
        # A dataset that is read by index cannot be read again to where it was.
        self._every = snapshot_every if iterable else 1
        self.lanes = lanes  # what the next epoch begins with
        self._began = lanes  # what the last one began with
        self._put_back: set[int] = set()  # lanes that are not where the next pass begins
        self._reading: Reading | None = None  # the newest

    def __getstate__(self) -> dict[str, Any]:
        # Nobody has read the lanes of a copy: they are put back to where they are known to be.
        return {**self.__dict__, "_put_back": set(self.lanes.each), "_reading": None}

    def fresh(self, epoch: int) -> Progress:
        return replace(self._inner.fresh(epoch), lanes=self.lanes)

    def restore(self, progress: Progress) -> None:
        self._inner.restore(progress)
        lanes = lanes_of(progress)
        self._began = lanes.afresh({})
        self.lanes = self._following(lanes) if progress.finished else self._began
        self.bring_along()

    def undo_restore(self) -> None:
        self._inner.undo_restore()  # the lanes stay those of the state's run, at its start

    def settle(self, progress: Progress) -> None:
        self._inner.settle(progress)
        self.lanes = self._began
        self.bring_along()

    def bring_along(self) -> None:
        """Have lanes begin from what is known of them: they, or who reads them, are elsewhere."""
        self._put_back = set(self.lanes.each)

    def run(self, progress: Progress, seed: int, opens: Open | None = None) -> Reading:
        """Begin to read; at once what is read in this process, which `opens` does."""
        lanes = lanes_of(progress)
        starts = {
            lane: Start(state if lane in self._put_back else None)
            for lane, state in lanes.each.items()
            if not state.ended
        }
        if opens is not None:
            lanes = _begun(lanes, opens(starts, Stream(seed, progress.epoch)))
            progress, starts = replace(progress, lanes=lanes), {}
        if all(state.is_at_start for state in lanes.each.values()):
            self._began = lanes
        self._put_back = set()
        tasks = self._inner.run(progress, seed)
        reading = Reading(
            tasks,
            progress,
            starts,
            turns=self._inner if isinstance(self._inner, Turns) else None,
            in_order=self._in_order,
            every=self._every,
        )
        self._reading = reading
        return reading

    def end(self, progress: Progress) -> Progress:
        lanes = lanes_of(progress)
        self.lanes = self._following(lanes)
        self._put_back = {lane for lane in lanes.each if self._cut(lanes.each[lane])}
        if self._reading is not None:
            self._put_back |= self._reading.away
        return replace(self._inner.end(progress), lanes=lanes)

    def _following(self, lanes: Lanes) -> Lanes:
        """The lanes of the epoch after one that ended with `lanes`."""
        if not self._carries:
            return lanes.afresh({})
        datasets = {}
        for lane, state in lanes.each.items():
            left = state.dataset
            if left is None and self._stateful:
                left = state.iterator
            datasets[lane] = self._began.each[lane].dataset if self._cut(state) else left
        return lanes.afresh(datasets)

    def _cut(self, state: LaneState) -> bool:
        """Whether a pass ended before this lane did, with the first rank that had no more."""
        return self._iterable and not state.ended

    def num_batches(self) -> int:
        return self._inner.num_batches()


class Reading(Iterator[Task]):
    """The tasks of one pass, and what is known of its lanes."""

    def __init__(
        self,
        tasks: Iterator[Task],
        progress: Progress,
        starts: dict[int, Start],
        *,
        turns: Turns | None,
        in_order: bool,
        every: int,
    ) -> None:
        self._in_order = in_order
        self._tasks = tasks
        self.progress = progress  # where the run stands, as of the last batch delivered
        self._starts = starts
        self._turns = turns  # of an iterable
        self._every = every
        lanes = lanes_of(progress)
        self._places = {lane: place for place, lane in enumerate(sorted(lanes.each))}
        self._issued = {lane: state.batches for lane, state in lanes.each.items()}
        self._going = [lane for lane in sorted(lanes.each) if not lanes.each[lane].ended]
        self._ended = set(lanes.each).difference(self._going)  # before anybody read them here
        self._on_their_way = dict.fromkeys(lanes.each, 0)  # tasks not delivered
        self._turn = lanes.last
        self._step = progress.batches_processed

    def __next__(self) -> Task:
        if not self._going:
            raise StopIteration
        task = next(self._tasks)
        after = bisect_right(self._going, self._turn)
        self._turn = self._going[after % len(self._going)]
        if not self._in_order:
            in_turn = self._going[after:] + self._going[:after]
            self._turn = min(in_turn, key=self._on_their_way.__getitem__)
        self._on_their_way[self._turn] += 1
        # Taken on the last steps before a multiple, so that all lanes are as of one step.
        captures = self._step % self._every >= self._every - len(self._places)
        number = self._issued[self._turn]
        start = self._starts.pop(self._turn, None)
        order: Any = LaneOrder(self._turn, number, start, captures, task.indices)
        self._issued[self._turn] += 1
        self._step += 1
        progress = task.progress
        if self._turns is not None:  # for messages; what it leads to is known when it is there
            progress = replace(progress, batches_processed=self._step)
        place = self._places[self._turn]
        return task._replace(indices=order, place=place, progress=progress)

    @property
    def away(self) -> set[int]:
        """Lanes that nobody has: they wait for a task to begin with, or get none any more."""
        return self._ended | self._starts.keys()

    def renewed(self, tasks: Sequence[Task], is_lost: Callable[[int], bool]) -> Iterator[Task]:
        """Make all undelivered tasks anew of lanes whose worker has died, at lost places.

        Those lanes begin once more where they were delivered up to: with their first task
        here, or with the next one that is made.
        """
        each = lanes_of(self.progress).each
        lost = [lane for lane, place in self._places.items() if is_lost(place)]
        self._starts.update((lane, Start(each[lane])) for lane in lost)
        self._ended.update(lane for lane in lost if each[lane].ended)
        for task in tasks:
            order: Any = task.indices
            start = self._starts.pop(order.lane, None)
            yield task._replace(indices=order._replace(start=start))

    def received(self, result: tuple[Task, Any]) -> tuple[Task, Any]:
        """Take note of a delivery; the task says then where the run stands."""
        if isinstance(result[1], Failed):
            raise result[1].error  # the lane would end here: it is begun again instead
        task, got = result[0], LaneBatch(*result[1])
        order: Any = task.indices
        self._on_their_way[order.lane] -= 1
        lanes = lanes_of(self.progress)
        lanes = lanes.with_lane(order.lane, _after(lanes.each[order.lane], order, got))
        if got.ended:
            self._going = [lane for lane in self._going if lane != order.lane]
        if got.size == 0:
            progress = replace(self.progress, lanes=lanes)
        elif self._turns is not None:
            progress = Progress(
                epoch=self.progress.epoch,
                batches_processed=self.progress.batches_processed + 1,
                samples_processed=self.progress.samples_processed + got.size,
                lanes=lanes,
            )
            self._turns.check_length(progress.samples_processed)
        else:
            progress = replace(task.progress, lanes=lanes)
        self.progress = progress
        return task._replace(progress=progress), got.batch if got.size else EMPTY


def _begun(lanes: Lanes, firsts: Mapping[int, bytes | None]) -> Lanes:
    """Lanes with the states of their datasets before anything was read, where none is known."""
    each = {
        lane: replace(state, dataset=firsts.get(lane))
        if state.is_at_start and state.dataset is None
        else state
        for lane, state in lanes.each.items()
    }
    return replace(lanes, each=each)


def lanes_of(progress: Progress) -> Lanes:
    """The lanes of a progress that has them."""
    if progress.lanes is None:
        msg = "this progress has no lanes"
        raise RuntimeError(msg)
    return progress.lanes


def _after(state: LaneState, order: LaneOrder, got: LaneBatch) -> LaneState:
    """Where a lane stands after a batch."""
    if state.ended:
        return state
    batches = order.number + (got.size > 0)
    if got.dataset is None and got.iterator is None:
        return replace(state, batches=batches, ended=got.ended)
    return LaneState(
        batches=batches,
        ended=got.ended,
        at=batches,
        # Empty where it is as it was.
        dataset=state.dataset if got.dataset == b"" else got.dataset,
        iterator=state.iterator if got.iterator == b"" else got.iterator,
    )
