"""An epoch as ranks share it: what each rank has at a position, and the tasks of a run over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import OptionError
from dataporter.fetch import Fetcher, Partial
from dataporter.fetch.randomness import EpochKeys
from dataporter.fetch.tasks import Samples, Task
from dataporter.law import Order, Plan
from dataporter.law.datasets import Leaf
from dataporter.law.ranges import beyond
from dataporter.law.rest import Rest
from dataporter.law.state import Progress
from dataporter.sources.delivered import Delivered
from dataporter.sources.left_out import without_left_out
from dataporter.sources.readings import Contents, Result

_ANNOUNCED = 512  # positions in an announcement at most, if a step has fewer
_ANNOUNCEMENTS = 64  # in an epoch at least
_NONE = np.zeros(0, dtype=np.int64)


def steps_announced(plan: Plan) -> int:
    """Return the number of steps that an order is told of at a time."""
    return max(min(_ANNOUNCED, plan.length // _ANNOUNCEMENTS) // plan.step_size, 1)


class SharedEpoch:
    """The rest of an epoch as ranks share it. Steps begin `at` positions counted around gaps."""

    def __init__(self, order: Order, rest: Rest, keys: EpochKeys) -> None:
        self.order = order
        self.rest = rest
        self.keys = keys

    def first_contents(self, position: int) -> Delivered:
        """Say what this rank's batch of the first step holds, which begins at a position."""
        own = self.positions(self.rest.start)
        self.check_are_there(own[own >= position])  # others fill the batch up
        return self._delivered(position, self.samples(own), self.padding(self.rest.start))

    def check_are_there(self, positions: NDArray[np.int64]) -> None:
        """Raise if the order has lost the samples at some of these positions."""
        reason = self.order.reason_removed(self.keys.epoch, positions)
        if reason is not None:
            raise OptionError(reason)

    def deal(self, counted: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the numbers by which ranks share positions, as `Order.deal` does."""
        return self.order.deal(self.keys.epoch, self.rest.around(counted))

    def positions(self, at: int, rank: int | None = None) -> NDArray[np.int64]:
        """Return the positions of a rank's batch in the step, this rank's by default."""
        plan = self.rest.plan
        if rank is not None:
            plan = replace(plan, topology=replace(plan.topology, rank=rank))
        return self.rest.around(next(plan.batches(at, self.deal), _NONE))

    def padding(self, at: int) -> NDArray[np.bool_]:
        """Say which samples of this rank's batch in the step are repeated to fill it."""
        return self.rest.plan.padding(at, self.deal)

    def samples(self, positions: NDArray[np.int64]) -> Samples:
        """Return what is fetched at positions of the epoch."""
        indices = self.order.indices(self.keys.epoch, positions)
        if self.order.of_batches:
            indices = positions = np.concatenate([_NONE, *indices])
        return Samples(indices, positions, self.keys)

    def of_others(self, at: int) -> Iterator[Samples]:
        """Yield the batches of the other ranks in the step, from the next rank on."""
        topology = self.rest.plan.topology
        ranks = range(topology.rank + 1, topology.rank + topology.world_size)
        shares = (self.positions(at, rank % topology.world_size) for rank in ranks)
        return (self.samples(share) for share in shares if len(share))

    def _delivered(self, position: int, samples: Samples, padding: NDArray[np.bool_]) -> Delivered:
        if len(padding) != len(samples.positions):  # an order of batches: one position is all of it
            padding = np.repeat(padding, len(samples.positions))
        return Delivered(
            epoch=self.keys.epoch,
            position=position,
            positions=samples.positions,
            indices=samples.indices,
            padding=padding,
        )


class Run(SharedEpoch):
    """The rest of an epoch, as it is read: its tasks, and where the run stands after each."""

    def __init__(
        self,
        start: Progress,
        order: Order,
        rest: Rest,
        whole: Plan,
        fetch: Fetcher,
        keys: EpochKeys,
        *,
        leaves: Sequence[Leaf],
    ) -> None:
        super().__init__(order, rest, keys)
        self._leaves = leaves  # those that the order reads
        self._start = start
        self._whole = whole  # the plan of the epoch without gaps
        self._fetch = fetch
        self._position = start.samples_processed  # delivered up to here

    def _find(
        self, start: int, stop: int, low: float, high: float
    ) -> tuple[int, NDArray[np.int64]] | None:
        if self.rest.gaps:  # positions are counted around them
            return None
        return self.order.dealt_between(self.keys.epoch, start, stop, low, high)

    def tasks(self) -> Iterator[Task]:
        """Yield a task for each of this rank's batches."""
        order, rest, keys, batches = self.order, self.rest, self.keys, 0
        size, announced = rest.plan.batch_size, steps_announced(rest.plan)
        for block in rest.plan.blocks(rest.start, self.deal, self._find):
            positions = rest.around(block)
            indices = order.indices(keys.epoch, positions)
            for first in range(0, len(positions), size):
                if batches % announced == 0:
                    stop = rest.reached(batches + announced)
                    for leaf in self._leaves:
                        leaf.announce(order, keys.epoch, self._position, stop, self._whole)
                batches += 1
                number = self._start.batches_processed + batches
                if order.of_batches:  # a sample comes once an epoch: its index serves as position
                    yield Task(number, Samples(indices[first], indices[first], keys))
                else:
                    batch = slice(first, first + size)
                    yield Task(number, Samples(indices[batch], positions[batch], keys))

    def receiver(self) -> Callable[[Task, Any], Result]:
        """Return what takes note of deliveries."""
        start, contents, reached = self._start, self._contents, self.rest.reached
        epoch, batches = start.epoch, start.batches_processed

        def received(task: Task, batch: Any) -> Result:
            at = self._position = reached(task.number - batches)
            found: Contents = (contents, task)
            if type(batch) is Partial:
                found, batch = self._without_left_out(batch, task)
            if not start.ahead:
                return (Progress(epoch, at, task.number), found), batch
            progress = Progress(epoch, at, task.number, ahead=beyond(start.ahead, at))
            return (progress, found), batch

        return received

    def _without_left_out(self, batch: Partial, task: Task) -> tuple[Contents, Any]:
        return without_left_out(
            batch,
            task,
            self._fetch,
            self._contents,
            lambda task: self.of_others(self._counted(task)),
            self.rest.plan.topology,
        )

    def _steps_before(self, task: Task) -> int:
        return task.number - self._start.batches_processed - 1

    def _counted(self, task: Task) -> int:
        """Return where the step of a task begins, counted around the gaps."""
        return self.rest.start + self._steps_before(task) * self.rest.plan.step_size

    def _contents(self, task: Task) -> Delivered:
        samples: Any = task.payload
        position = self.rest.reached(self._steps_before(task))
        padding = self.padding(self._counted(task))
        return self._delivered(position, samples, padding)
