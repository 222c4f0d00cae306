"""One pass over lanes: whose turn it is, and where every lane stands after each delivery.

Lanes take turns, those that have ended are left out. So the order of batches does not
depend on who reads which lane, or how far ahead. Only where batches may come in any order,
the turn is that of the lane of which the fewest are on their way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dataporter.fetch import EMPTY, Failed
from dataporter.fetch.randomness import EpochKeys
from dataporter.fetch.tasks import LaneTurn, Start, Task
from dataporter.law.lane_states import Lanes, LaneState
from dataporter.law.state import Progress
from dataporter.sources.lanes.fetcher import LaneBatch
from dataporter.sources.lanes.iterable import Iterable
from dataporter.sources.readings import Contents, Reading, Result


class LaneReading(Iterator[Task]):
    """The tasks of one pass, and what is known of its lanes.

    `over` is the iterable that is read, or the reading of indices by which a dataset is. `starts`
    says where lanes begin that nobody has begun yet. States are taken every so many steps.
    """

    def __init__(
        self,
        over: Iterable | Reading,
        progress: Progress,
        starts: dict[int, Start],
        keys: EpochKeys,
        *,
        in_order: bool,
        every: int,
    ) -> None:
        self._over = over
        self._keys = keys
        self._in_order = in_order
        self.progress = progress  # where the run stands, as of the last batch delivered
        self._starts = starts
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
        indexed = next(self._over.tasks) if isinstance(self._over, Reading) else None
        lane = self._turn = self._next_lane()
        self._on_their_way[lane] += 1
        samples: Any = None if indexed is None else indexed.payload
        turn = LaneTurn(
            lane,
            self._issued[lane],
            self._starts.pop(lane, None),
            # Taken on the last steps before a multiple, so that all lanes are as of one step.
            self._step % self._every >= self._every - len(self._places),
            self._keys,
            samples,
        )
        self._issued[lane] += 1
        self._step += 1
        return Task(self._step, turn, self._places[lane])

    def _next_lane(self) -> int:
        after = bisect_right(self._going, self._turn)
        if self._in_order:
            return self._going[after % len(self._going)]
        in_turn = self._going[after:] + self._going[:after]
        return min(in_turn, key=self._on_their_way.__getitem__)

    @property
    def away(self) -> set[int]:
        """Lanes that nobody has: they wait for a task to begin with, or get none any more."""
        return self._ended | self._starts.keys()

    def renew(self, tasks: Sequence[Task], is_lost: Callable[[int], bool]) -> Iterator[Task]:
        """Make all undelivered tasks anew of lanes whose worker has died, at lost places.

        Those lanes begin once more where they were delivered up to: with their first task
        here, or with the next one that is made.
        """
        each = lanes_of(self.progress).each
        lost = [lane for lane, place in self._places.items() if is_lost(place)]
        self._starts.update((lane, Start(each[lane], each[lane].seeded_from)) for lane in lost)
        self._ended.update(lane for lane in lost if each[lane].ended)
        for task in tasks:
            turn: Any = task.payload
            start = self._starts.pop(turn.lane, None)
            yield task._replace(payload=turn._replace(start=start))

    def received(self, task: Task, result: Any) -> Result:
        """Take note of a delivery: where the run stands then, and the batch itself."""
        if isinstance(result, Failed):
            raise result.error  # the lane would end here: it is begun again instead
        got = LaneBatch(*result)
        turn: Any = task.payload
        lane, progress = turn.lane, self.progress
        self._on_their_way[lane] -= 1
        lanes = lanes_of(progress)
        lanes = lanes.with_lane(lane, _after(lanes.each[lane], turn, got))
        if got.ended:
            self._going = [other for other in self._going if other != lane]
        if got.size == 0:
            self.progress = progress._replace(lanes=lanes)
            return (self.progress, None), EMPTY
        contents: Contents = None
        if isinstance(self._over, Reading):
            received = self._over.received(Task(task.number, turn.samples), None)
            indexed, contents = received[0]
            self.progress = indexed._replace(lanes=lanes)
        else:
            samples = progress.samples_processed + got.size
            self.progress = Progress(
                epoch=progress.epoch,
                batches_processed=progress.batches_processed + 1,
                samples_processed=samples,
                lanes=lanes,
            )
            self._over.check_length(samples)
        return (self.progress, contents), got.batch


def lanes_of(progress: Progress) -> Lanes:
    """Return the lanes of a progress that has them."""
    if progress.lanes is None:
        msg = "this progress has no lanes"
        raise RuntimeError(msg)
    return progress.lanes


def _after(state: LaneState, turn: LaneTurn, got: LaneBatch) -> LaneState:
    """Return the state of a lane after a batch."""
    if state.ended:
        return state
    batches = turn.number + (got.size > 0)
    if got.dataset is None and got.iterator is None:
        return state._replace(batches=batches, ended=got.ended, seeded_from=got.seeded_from)
    return LaneState(
        batches,
        got.ended,
        batches,
        # Empty where it is as it was.
        state.dataset if got.dataset == b"" else got.dataset,
        state.iterator if got.iterator == b"" else got.iterator,
        got.seeded_from,
    )
