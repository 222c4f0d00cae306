"""Tasks: one pass as a stream of batches to fetch, each with the state it leads to.

A pass follows dataporter's own order (`PlannedTasks`) or a sampler of the user's own
(`SampledTasks`). Both start from any progress without touching the data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dataporter.fetch.generators import capture, restore, seed_all
from dataporter.fetch.randomness import Stream
from dataporter.law import Order, Plan, Topology
from dataporter.law.ahead import Ranges, around, beyond, outside, size_of
from dataporter.law.keys import key_as_int
from dataporter.law.state import Progress
from dataporter.samplers import ResumableSampler
from dataporter.sources.users_sampler import Drawer, UsersSampler, is_torchs_batch_sampler

_DROPPED = 2**16  # indices that are drawn and dropped at a time


class Task(NamedTuple):
    """One batch to fetch."""

    indices: Sequence[Any] | NDArray[np.int64]
    positions: NDArray[np.int64]
    stream: Stream
    progress: Progress  # where the run stands once this batch has been delivered
    place: int | None = None  # whose turn it is, where not any worker can take it


class Tasks(Protocol):
    """What a loader's passes are made of."""

    def fresh(self, epoch: int) -> Progress:
        """Say where the run stands at the start of an epoch that begins now."""
        ...

    def restore(self, progress: Progress) -> None:
        """Go back to where a progress was taken. If that fails, nothing has changed."""
        ...

    def undo_restore(self) -> None:
        """Go back to before the last `restore`."""
        ...

    def settle(self, progress: Progress) -> None:
        """A pass was broken off at `progress`: forget what was drawn ahead of it."""
        ...

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        """Yield the tasks that remain of the epoch after `progress`."""
        ...

    def end(self, progress: Progress) -> Progress:
        """Say where the run stands once the epoch of `progress` has run to its end."""
        ...

    def num_batches(self) -> int:
        """Batches in a full epoch."""
        ...


class PlannedTasks:
    """Tasks of dataporter's own order, shared among ranks by a plan.

    `length` tells how many samples the dataset has by now, if that may change: each epoch has
    as many as there are when it begins.
    """

    def __init__(
        self, sampler: ResumableSampler, plan: Plan, length: Callable[[], int] | None = None
    ) -> None:
        self._sampler = sampler
        self._plan = plan
        self._length = length

    def fresh(self, epoch: int) -> Progress:
        if self._length is not None:
            self._sampler.resize(self._length())
        return Progress(epoch=epoch)

    def restore(self, progress: Progress) -> None:
        pass  # an order has no position of its own

    def undo_restore(self) -> None:
        pass

    def settle(self, progress: Progress) -> None:
        pass

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        # The order of now: later passes may have another length, and a load another seed.
        return self._run(progress, seed, self._sampler.order, self._shared())

    def _run(self, progress: Progress, seed: int, order: Order, plan: Plan) -> Iterator[Task]:
        # Counted without what was delivered ahead, all of which lies beyond the start.
        ahead, size = progress.ahead, plan.batch_size
        plan = replace(plan, length=plan.length - size_of(ahead))
        stream = Stream(seed, progress.epoch)
        epoch, start, done = progress.epoch, progress.samples_processed, progress.batches_processed
        step = 0
        for counted in plan.blocks(start):
            positions = around(ahead, counted) if ahead else counted
            indices = order.indices(epoch, positions)
            for first in range(0, len(positions), size):
                step += 1
                reached = plan.position_after(start, step)
                if ahead:
                    reached = int(around(ahead, [reached])[0])
                after = Progress(
                    epoch=epoch,
                    samples_processed=reached,
                    batches_processed=done + step,
                    ahead=beyond(ahead, reached) if ahead else ahead,
                )
                batch = slice(first, first + size)
                yield Task(indices[batch], positions[batch], stream, after)

    def end(self, progress: Progress) -> Progress:
        samples, batches = progress.samples_processed, progress.batches_processed
        length = self._sampler.order.length
        if self._plan.tail != "drop" and samples < length:
            # An uneven last step that this rank had no part in; the state is that of all.
            samples, batches = length, batches + 1
        return replace(
            progress, samples_processed=samples, batches_processed=batches, finished=True, ahead=()
        )

    def num_batches(self) -> int:
        plan = self._shared()
        return (
            plan if self._length is None else replace(plan, length=self._length())
        ).num_batches()

    def _shared(self) -> Plan:
        """The plan of this epoch, for the ranks that there are now."""
        length, topology = self._sampler.order.length, self._sampler.topology
        return replace(self._plan, length=length, topology=topology)


class SampledTasks:
    """Tasks of a sampler or batch sampler of the user's own, taken as it is."""

    def __init__(
        self,
        sampler: UsersSampler,
        *,
        batch_size: int | None,
        drop_last: bool,
        topology: Topology,
    ) -> None:
        self._sampler = sampler
        self._drawn_from: Any = sampler.outermost
        self._seed = 0
        self._newest = Drawer()  # the pass that began last
        self._topology = topology
        self._yields_batches = sampler.yields_batches
        self._size = 1 if batch_size is None else batch_size
        self._drop_last = drop_last
        if self._yields_batches and is_torchs_batch_sampler(self._drawn_from):
            # Made here instead, so that the last, short batch is known to be one.
            self._size, self._drop_last = self._drawn_from.batch_size, self._drawn_from.drop_last
            self._drawn_from, self._yields_batches = self._drawn_from.sampler, False

    def fresh(self, epoch: int) -> Progress:
        self._sampler.draw_for(None)
        kept, rng_state = self._sampler.capture_start()
        return Progress(epoch=epoch, rng_state=rng_state, sampler=kept)

    def restore(self, progress: Progress) -> None:
        self._sampler.restore(progress.sampler, progress.rng_state)

    def undo_restore(self) -> None:
        self._sampler.undo_restore()

    def settle(self, progress: Progress) -> None:
        if progress.sampler is None and progress.rng_state is None:
            return  # nothing that the next epoch would be drawn from
        self._sampler.restore(progress.sampler, progress.rng_state)
        # A pass that has begun has drawn its first index, by whichever engine: two passes that
        # begin one after the other differ.
        self._begin_drawing(progress, self._seed, None, least=1)

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        self._seed = seed
        self._newest = self._sampler.handed_over()
        return self._run(progress, seed, self._newest)

    def _run(self, progress: Progress, seed: int, drawer: Drawer) -> Iterator[Task]:
        world_size, rank = self._topology.world_size, self._topology.rank
        stream = Stream(seed, progress.epoch)
        done = progress.batches_processed
        for indices, numbers, reached in self._batches(progress, seed, drawer):
            done += 1
            kept = progress.sampler
            if self._sampler.is_stateful:
                # A short batch is the last one, and the sampler may have reset itself since.
                kept = self._sampler.capture(ended=self._is_short(indices))
            after = Progress(
                epoch=progress.epoch,
                samples_processed=reached * world_size,
                batches_processed=done,
                rng_state=progress.rng_state,
                sampler=kept,
                ahead=beyond(progress.ahead, reached) if progress.ahead else (),
            )
            # Interleaved, as ranks share an order: no two ranks have a sample's key in common.
            yield Task(indices, numbers * world_size + rank, stream, after)

    def end(self, progress: Progress) -> Progress:
        # The next pass goes on from where sampler and generators are now.
        kept, rng_state = self._sampler.left_by(self._newest)
        return replace(progress, finished=True, rng_state=rng_state, sampler=kept, ahead=())

    def num_batches(self) -> int:
        count = len(self._drawn_from)
        if self._yields_batches:
            return count
        return count // self._size if self._drop_last else -(-count // self._size)

    def _is_short(self, indices: Sequence[Any]) -> bool:
        if self._yields_batches:
            return False
        if is_torchs_batch_sampler(self._drawn_from):  # lists of indices in place of indices
            return len(indices[-1]) < int(self._drawn_from.batch_size)
        return len(indices) < self._size

    def _batches(
        self, progress: Progress, seed: int, drawer: Drawer
    ) -> Iterator[tuple[list[Any], NDArray[np.int64], int]]:
        """Draw the indices of each batch, their numbers, and the number that is reached then.

        What was consumed is left out, in batches of whatever size that was.
        """
        if progress.sampler is not None and progress.sampler["ended"]:
            return
        drawing = self._begin_drawing(progress, seed, drawer)
        reached = progress.samples_processed // self._topology.world_size
        size = 1 if self._yields_batches else self._size
        while True:
            indices, numbers, reached = drawing.batch(size, reached, progress.ahead)
            if indices is None or (self._drop_last and len(indices) < size):
                return
            yield indices, numbers, reached
            if self._is_short(indices):
                return  # the sampler has ended, and may begin anew if it is asked once more

    def _begin_drawing(
        self, progress: Progress, seed: int, drawer: Drawer | None, *, least: int = 0
    ) -> _Drawing:
        """Begin to draw where `progress` is, and `least` after the start of the epoch."""
        isolated: AbstractContextManager[None] = nullcontext()
        skipped = 0
        if not self._sampler.is_stateful:
            if not self._sampler.draws_nothing:
                key = key_as_int("sampler", seed, progress.epoch)
                # Those that draw at their start do so by their first index.
                isolated = _Isolated(key, uses=2 if self._sampler.draws_at_start_only else None)
            skipped = max(progress.samples_processed // self._topology.world_size, least)
        drawing = _Drawing(
            self._sampler,
            self._drawn_from,
            isolated,
            drawer,
            yields_batches=self._yields_batches,
        )
        drawing.skip(skipped)
        return drawing


class _Drawing:
    """What one pass draws from a sampler, whatever other passes draw from it in between."""

    def __init__(
        self,
        sampler: UsersSampler,
        drawn_from: Any,
        isolated: AbstractContextManager[None],
        drawer: Drawer | None,
        *,
        yields_batches: bool,
    ) -> None:
        self._sampler = sampler
        self._drawn_from = drawn_from
        self._isolated = isolated
        self._drawer = drawer
        self._yields_batches = yields_batches
        self._rest: list[Any] = []  # of a batch of which a part was consumed
        sampler.draw_for(drawer)
        with isolated:
            self._begin()

    def _begin(self) -> None:
        self._each = iter(self._drawn_from)
        if self._each is self._drawn_from:
            self._each = _advanced(self._each)

    def batch(
        self, size: int, number: int, ahead: Ranges
    ) -> tuple[list[Any] | None, NDArray[np.int64], int]:
        """Draw a batch from index number `number` on; its numbers, and which one comes next.

        Those in `ahead` are left out: they were delivered before their turn. None at the end.
        """
        drawn = self.take(size)
        if drawn is None or not ahead:
            after = number + len(drawn or ())
            return drawn, np.arange(number, after, dtype=np.int64), after
        indices: list[Any] = []
        numbers: list[int] = []
        while drawn is not None:
            wanted = outside(ahead, number, number + len(drawn))
            indices += [drawn[at - number] for at in wanted]
            numbers += wanted
            number += len(drawn)
            drawn = self.take(size - len(indices)) if len(indices) < size else None
        return indices or None, np.array(numbers, dtype=np.int64), number

    def take(self, count: int) -> list[Any] | None:
        """Draw so many indices, or one batch if the sampler yields batches; None at its end."""
        if self._rest:
            rest, self._rest = self._rest, []
            return rest
        if self._sampler.draw_for(self._drawer) and self._sampler.is_stateful:
            self._begin()  # a state that was put back takes effect in a new iterator
        with self._isolated:
            if not self._yields_batches:
                return list(itertools.islice(self._each, count)) or None
            batch = next(self._each, None)
        return None if batch is None else _listed(batch)

    def skip(self, count: int) -> None:
        """Draw so many indices and drop them."""
        while count > 0:
            drawn = self.take(min(count, _DROPPED))
            if drawn is None:
                return
            self._rest, count = drawn[count:], count - len(drawn)


def _advanced(drawing: Iterator[Any]) -> Iterator[Any]:
    """What remains of an iterator that begins anew whenever `iter` is called, as `islice` does."""
    while True:
        try:
            yield next(drawing)
        except StopIteration:
            return


def _listed(batch: Any) -> list[Any]:
    """A batch of indices as a list, of ints where it was an array or a tensor."""
    listed: list[Any] = batch.tolist() if hasattr(batch, "tolist") else list(batch)
    return listed


class _Isolated(AbstractContextManager[None]):
    """Global generators of a sampler's own, seeded by a key, in place of the caller's.

    So its draws are the same at every replay, and neither take from nor give to the
    numbers that the caller draws in between. After `uses`, it does nothing any more.
    """

    def __init__(self, key: int, *, uses: int | None) -> None:
        self._uses = uses
        self._callers = capture()
        seed_all(key)
        self._own = capture()
        restore(self._callers)

    def __enter__(self) -> None:
        if self._uses != 0:
            self._callers = capture()
            restore(self._own)

    def __exit__(self, *_: object) -> None:
        if self._uses != 0:
            self._own = capture()
            restore(self._callers)
            self._uses = None if self._uses is None else self._uses - 1
