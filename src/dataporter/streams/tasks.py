"""Tasks of lanes: whose turn it is, and where every lane stands once a batch is delivered.

Lanes take turns, those that have ended are left out. So the order of batches does not
depend on who reads which lane, or how far ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dataporter.fetch import EMPTY
from dataporter.randomness import Stream
from dataporter.streams.fetcher import LaneBatch, LaneOrder
from dataporter.streams.lane import Start
from dataporter.tasks import Task, Tasks
from dataporter.utils.lane_states import Lanes, LaneState
from dataporter.utils.state_dict import Progress

_NO_POSITIONS = np.empty(0, np.int64)


class Turns:
    """The tasks of an iterable, as far as they are known beforehand: one after another."""

    def __init__(self, num_batches: Callable[[], int]) -> None:
        self._num_batches = num_batches

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
        task = Task(None, _NO_POSITIONS, Stream(seed, progress.epoch), progress)  # type: ignore[arg-type]
        return itertools.repeat(task)

    def end(self, progress: Progress) -> Progress:
        return replace(progress, finished=True)

    def num_batches(self) -> int:
        return self._num_batches()


class LaneTasks:
    """Shares tasks out to lanes.

    `inner` are the tasks of all lanes together. `carries` if a lane's dataset goes on from
    epoch to epoch, as it does unless workers are started anew for each.
    """

    def __init__(
        self,
        inner: Tasks,
        *,
        lanes: Lanes,
        iterable: bool,
        carries: bool,
        snapshot_every: int,
    ) -> None:
        self._inner = inner
        self._fresh = lanes
        self._iterable = iterable
        self._carries = carries
        self._every = snapshot_every
        self._restored = False
        self._rewinds = False
        self._progress = Progress(lanes=lanes)  # as of the last batch delivered
        self._before: tuple[Lanes, Progress] | None = None

    @property
    def lanes(self) -> Lanes:
        """The lanes that passes begin with."""
        return self._fresh

    def fresh(self, epoch: int) -> Progress:
        last = self._progress.lanes or self._fresh
        lanes = last.afresh(carried=self._carries and self._progress.finished)
        return replace(self._inner.fresh(epoch), lanes=lanes)

    def restore(self, progress: Progress) -> None:
        self._inner.restore(progress)
        self._before = self._fresh, self._progress
        self._restored = True
        self._progress = progress
        if progress.lanes is not None:
            self._fresh = progress.lanes.afresh(carried=False)

    def undo_restore(self) -> None:
        self._inner.undo_restore()
        if self._before is not None:
            self._fresh, self._progress = self._before
        self._restored = False

    def settle(self, progress: Progress) -> None:
        self._inner.settle(progress)
        self._rewinds = True

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        restored, rewinds = self._restored, self._rewinds
        self._restored = self._rewinds = False
        self._progress = progress
        lanes = progress.lanes or self._fresh
        issued = {lane: state.batches for lane, state in lanes.each.items()}
        opened: set[int] = set()
        tasks = self._inner.run(progress, seed)
        lane = lanes.last
        while (turn := self._after(lane)) is not None:
            task = next(tasks, None)
            if task is None:
                return
            lane = turn
            start = None
            if lane not in opened:
                opened.add(lane)
                start = self._start(lane, restored=restored, rewinds=rewinds)
            yield self._order(task, lane, issued[lane], start)
            issued[lane] += 1

    def _after(self, lane: int) -> int | None:
        """The lane whose turn it is after `lane`, of those not known to have ended."""
        lanes = self._progress.lanes or self._fresh
        going = sorted(number for number, state in lanes.each.items() if not state.ended)
        return next((number for number in going if number > lane), going[0] if going else None)

    def _start(self, lane: int, *, restored: bool, rewinds: bool = False) -> Start:
        lanes = self._progress.lanes or self._fresh
        state = lanes.each[lane]
        anew = state.batches == 0 and state.dataset is None and state.iterator is None
        if anew or not restored:
            return Start(None, rewinds=rewinds)
        return Start(state)

    def _order(self, task: Task, lane: int, number: int, start: Start | None) -> Task:
        captures = (number + 1) % self._every == 0
        order = LaneOrder(lane, number, start, captures, task.indices)
        place = sorted((self._progress.lanes or self._fresh).each).index(lane)
        return task._replace(indices=order, place=place)

    def renewed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Make tasks anew whose worker has died: its lanes are brought back first."""
        opened: set[int] = set()
        for task in tasks:
            order: Any = task.indices
            start = None
            if order.lane not in opened:
                opened.add(order.lane)
                lanes = self._progress.lanes or self._fresh
                # What was read since the last delivery, and arrived, is read again.
                state = replace(lanes.each[order.lane], batches=order.number)
                start = Start(state)
            yield task._replace(indices=order._replace(start=start))

    def received(self, result: tuple[Task, Any]) -> tuple[Task, Any]:
        """Take note of a delivery; the task says then where the run stands."""
        task, got = result[0], LaneBatch(*result[1])
        order: Any = task.indices
        lanes = self._progress.lanes or self._fresh
        state = _after(lanes.each[order.lane], order, got)
        if got.size == 0:
            progress = replace(self._progress, lanes=lanes.with_lane(order.lane, state))
        elif self._iterable:
            progress = replace(
                self._progress,
                batches_processed=self._progress.batches_processed + 1,
                samples_processed=self._progress.samples_processed + got.size,
                lanes=lanes.with_lane(order.lane, state),
            )
        else:
            progress = replace(task.progress, lanes=lanes.with_lane(order.lane, state))
        self._progress = progress
        return task._replace(progress=progress), EMPTY if got.size == 0 else got.batch

    def end(self, progress: Progress) -> Progress:
        self._progress = replace(self._inner.end(progress), lanes=progress.lanes)
        return self._progress

    def num_batches(self) -> int:
        return self._inner.num_batches()


def _after(state: LaneState, order: LaneOrder, got: LaneBatch) -> LaneState:
    """Where a lane stands after a batch."""
    batches = order.number + (got.size > 0)
    after = replace(state, batches=batches, ended=got.ended)
    if not (order.captures or got.ended):
        return after
    return replace(
        after,
        at=batches if got.dataset is not None or got.iterator is not None else 0,
        dataset=_newer(got.dataset, state.dataset),
        iterator=_newer(got.iterator, state.iterator),
    )


def _newer(sent: torch.Tensor | None, known: bytes | None) -> bytes | None:
    if sent is None:
        return None
    return sent.numpy().tobytes() if len(sent) else known
