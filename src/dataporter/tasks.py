"""Tasks: one pass as a stream of batches to fetch, each with the state it leads to.

A pass follows dataporter's own order (`PlannedTasks`) or a sampler of the user's own
(`SampledTasks`). Both start from any progress without touching the data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dataporter.generators import capture, restore, seed_all
from dataporter.order import Plan, Topology
from dataporter.order.ahead import around, beyond, size_of
from dataporter.order.keys import key_as_int
from dataporter.randomness import Stream
from dataporter.samplers import ResumableSampler
from dataporter.users_sampler import UsersSampler, is_torchs_batch_sampler
from dataporter.utils.state_dict import Progress


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
    """Tasks of dataporter's own order, shared among ranks by a plan."""

    def __init__(self, sampler: ResumableSampler, plan: Plan) -> None:
        self._sampler = sampler
        self._plan = plan

    def fresh(self, epoch: int) -> Progress:
        return Progress(epoch=epoch)

    def restore(self, progress: Progress) -> None:
        pass  # an order has no position of its own

    def undo_restore(self) -> None:
        pass

    def settle(self, progress: Progress) -> None:
        pass

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        # Counted without what was delivered ahead, all of which lies beyond the start.
        ahead, size = progress.ahead, self._plan.batch_size
        plan = replace(self._shared(), length=self._plan.length - size_of(ahead))
        order = self._sampler.order  # of now: loading a state may have changed its seed
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
        if self._plan.tail != "drop" and samples < self._plan.length:
            # An uneven last step that this rank had no part in; the state is that of all.
            samples, batches = self._plan.length, batches + 1
        return replace(
            progress, samples_processed=samples, batches_processed=batches, finished=True, ahead=()
        )

    def num_batches(self) -> int:
        return self._shared().num_batches()

    def _shared(self) -> Plan:
        """The plan of the ranks that there are now."""
        return replace(self._plan, topology=self._sampler.topology)


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
        self._topology = topology
        self._yields_batches = sampler.yields_batches
        self._size = 1 if batch_size is None else batch_size
        self._drop_last = drop_last
        if self._yields_batches and is_torchs_batch_sampler(self._drawn_from):
            # Made here instead, so that the last, short batch is known to be one.
            self._size, self._drop_last = self._drawn_from.batch_size, self._drawn_from.drop_last
            self._drawn_from, self._yields_batches = self._drawn_from.sampler, False

    def fresh(self, epoch: int) -> Progress:
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
        self._drawing(progress, self._seed)

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        world_size, rank = self._topology.world_size, self._topology.rank
        self._seed = seed
        stream = Stream(seed, progress.epoch)
        done, drawn = progress.batches_processed, progress.samples_processed // world_size
        for indices in self._batches(progress, seed):
            first, drawn = drawn, drawn + len(indices)
            if (first, drawn) in progress.ahead:
                continue
            done += 1
            kept = progress.sampler
            if self._sampler.is_stateful:
                # A short batch is the last one, and the sampler may have reset itself since.
                kept = self._sampler.capture(ended=self._is_short(indices))
            after = Progress(
                epoch=progress.epoch,
                samples_processed=drawn * world_size,
                batches_processed=done,
                rng_state=progress.rng_state,
                sampler=kept,
                ahead=beyond(progress.ahead, drawn) if progress.ahead else (),
            )
            # Interleaved, as ranks share an order: no two ranks have a sample's key in common.
            positions = np.arange(first, drawn, dtype=np.int64) * world_size + rank
            yield Task(indices, positions, stream, after)

    def end(self, progress: Progress) -> Progress:
        # The next pass goes on from where sampler and generators are now.
        kept, rng_state = self._sampler.capture_start()
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

    def _batches(self, progress: Progress, seed: int) -> Iterator[Sequence[Any]]:
        """Draw the indices of each batch, those already consumed left out."""
        if progress.sampler is not None and progress.sampler["ended"]:
            return
        isolated, drawing = self._drawing(progress, seed)
        count = 1 if self._yields_batches else self._size
        with isolated:
            drawn = list(itertools.islice(drawing, count))
        while drawn and not (self._drop_last and len(drawn) < count):
            yield _listed(drawn[0]) if self._yields_batches else drawn
            with isolated:
                drawn = list(itertools.islice(drawing, count))

    def _drawing(
        self, progress: Progress, seed: int
    ) -> tuple[AbstractContextManager[None], Iterator[Any]]:
        """Begin to draw where `progress` is; in what context to go on, and from what."""
        isolated: AbstractContextManager[None] = nullcontext()
        skipped = 0
        if not self._sampler.is_stateful:
            if not self._sampler.draws_nothing:
                key = key_as_int("sampler", seed, progress.epoch)
                # Those that draw at their start do so by their first index.
                isolated = _Isolated(key, uses=2 if self._sampler.draws_at_start_only else None)
            samples = progress.samples_processed // self._topology.world_size
            batches = progress.batches_processed - len(progress.ahead)
            skipped = batches if self._yields_batches else samples
        with isolated:
            drawing = iter(self._drawn_from)
            if drawing is self._drawn_from:
                drawing = _advanced(drawing)
            next(itertools.islice(drawing, skipped, skipped), None)  # drops so many
        return isolated, drawing


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
