"""The sampled source: a sampler or batch sampler of the user's own, taken as it is.

A resume draws the consumed indices again and drops them, without touching the data, unless the
sampler has a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import StateMismatchError, StateMismatchWarning
from dataporter.fetch import Fetcher, Partial
from dataporter.fetch.randomness import EpochKeys
from dataporter.fetch.tasks import Samples, Task
from dataporter.law import Ranks, Topology
from dataporter.law.keys import key_as_int
from dataporter.law.ranges import beyond
from dataporter.law.state import Identity, Progress
from dataporter.sources.delivered import Delivered
from dataporter.sources.drawing import Drawing, Isolated, Shared
from dataporter.sources.left_out import without_left_out
from dataporter.sources.readings import Reading, Result, as_they_come
from dataporter.sources.source import EpochHolder, Resumption, Source
from dataporter.sources.users_sampler import Drawer, UsersSampler, is_torchs_batch_sampler
from dataporter.user_warnings import warn_user


class SampledSource(Source):
    """Passes over what a sampler of the user's own yields.

    Without `in_order`, one rank's batches are delivered as they come.
    """

    def __init__(
        self,
        dataset: Any,
        fetch: Fetcher,
        sampler: UsersSampler,
        *,
        batch_size: int | None,
        drop_last: bool,
        ranks: Ranks,
        seed: int,
        seed_is_given: bool,
        in_order: bool,
    ) -> None:
        super().__init__(
            dataset,
            batch_size=batch_size,
            seed_is_given=seed_is_given,
            epochs=EpochHolder(sampler.epoch_target),
        )
        self._fetch = fetch
        self._sampler = sampler
        self._seed = seed
        self._topology = sampler.topology() or ranks.topology
        self._in_order = in_order
        self._newest = Drawer()  # of the pass that began last
        self._drawn_from: Any = sampler.outermost
        self._yields_batches = sampler.yields_batches
        self._size = 1 if batch_size is None else batch_size
        self._drop_last = drop_last
        self.tail = "drop" if drop_last else "uneven"
        if self._yields_batches and is_torchs_batch_sampler(self._drawn_from):
            # Batches are made here instead, so that the last, short one is known to be short.
            self._size, self._drop_last = self._drawn_from.batch_size, self._drawn_from.drop_last
            self._drawn_from, self._yields_batches = self._drawn_from.sampler, False
        # Batches of the user's own may have other sizes on each rank. A sampler with a state that
        # does not know its rank may be another one on each.
        knows_rank = sampler.topology() is not None
        self.states_differ = self._yields_batches or (sampler.is_stateful and not knows_rank)
        self._rank_may_differ = not sampler.is_stateful
        self.place_lacks = "its sampler" if sampler.is_stateful else None
        self._loaded_rank: int | None = self._topology.rank

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def topology(self) -> Topology:
        return self._topology

    def identity(self) -> Identity:
        return self._identity(self._sampler.order_id())

    def fresh(self, epoch: int) -> Progress:
        self._sampler.draw_for(None)
        kept, rng_state = self._sampler.capture_start()
        return Progress(epoch=epoch, rng_state=rng_state, sampler=kept)

    def ended(self, progress: Progress) -> Progress:
        # The next pass goes on from where sampler and generators are now.
        kept, rng_state = self._sampler.left_by(self._newest)
        return progress._replace(finished=True, rng_state=rng_state, sampler=kept, ahead=())

    _holder_of_state = "the sampler"

    def at(self, progress: Progress, position: int) -> Progress:
        if position == 0:
            return self._start_of(progress)
        if self._sampler.is_stateful or self._counts_batches:
            return super().at(progress, position)
        step = self._size * self._topology.world_size
        start = super().at(progress, 0)
        return start._replace(samples_processed=position, batches_processed=-(-position // step))

    def _start_of(self, progress: Progress) -> Progress:
        moved = progress.samples_processed or progress.batches_processed or progress.finished
        drawn_from = progress.sampler is not None or progress.rng_state is not None
        if drawn_from and (progress.finished or (moved and self._sampler.is_stateful)):
            msg = (
                f"epoch {progress.epoch} cannot begin again: the state says where the sampler or "
                "its generator is, not where that epoch began. Continue from the state as it is, "
                "or begin another epoch."
            )
            raise StateMismatchError(msg)
        return super().at(progress, 0)

    @property
    def _draws_at_once(self) -> int:
        """Draws that make a batch."""
        return 1 if self._yields_batches else self._size

    def num_batches(self) -> int:
        count = len(self._drawn_from)
        if self._yields_batches:
            return count
        return count // self._size if self._drop_last else -(-count // self._size)

    def settle(self, progress: Progress) -> None:
        if progress.sampler is None and progress.rng_state is None:
            return  # nothing that the next epoch would be drawn from
        if self._sampler.was_moved():
            return  # by the user, to where the next epoch begins
        self._sampler.restore(progress.sampler, progress.rng_state)
        # A pass that has begun has drawn its first index, by whichever engine: two passes that
        # begin one after the other differ.
        self._begin_drawing(progress, None, least=1)

    def restore(self, progress: Progress) -> None:
        self._sampler.restore(progress.sampler, progress.rng_state)

    def take_back(self, progress: Progress) -> None:
        self._sampler.take_back(progress.sampler, progress.rng_state)

    def undo_restore(self) -> None:
        self._sampler.undo_restore()

    def resume(self, at: Resumption) -> None:
        self.restore(at.progress)
        self._seed, self._loaded_rank = at.seed, at.rank

    @property
    def _counts_batches(self) -> bool:
        """True if batches are what all ranks have consumed equally many of."""
        return self._yields_batches and self._topology.world_size > 1

    def begin(self, progress: Progress, *, same_workers: bool) -> Reading:
        self._newest = self._sampler.handed_over()
        led_to: dict[int, Progress] = {}  # by the number of the task that leads there
        contents = partial(_contents, progress.epoch, self._topology.rank)
        left_out = partial(
            without_left_out,
            fetch=self._fetch,
            contents=contents,
            others=lambda _: None,  # only the sampler knows
            topology=self._topology,
        )

        def received(task: Task, batch: Any) -> Result:
            reached, payload = led_to.pop(task.number), cast("Samples", task.payload)
            if type(batch) is Partial:
                found, batch = left_out(batch, task)
                return (reached, found), batch
            holds = contents if len(payload.positions) else partial(_nothing, reached)
            return (reached, (holds, task)), batch

        reading = Reading(
            tasks=self._tasks(progress, self._newest, led_to),
            fetch=self._fetch,
            progress=progress,
            received=received,
        )
        # One rank's state holds for all, and cannot say what the others have delivered ahead.
        in_order = self._in_order or self._topology.world_size > 1
        return reading if in_order else as_they_come(reading)

    def _tasks(
        self, start: Progress, drawer: Drawer, led_to: dict[int, Progress]
    ) -> Iterator[Task]:
        world_size, rank = self._topology.world_size, self._topology.rank
        keys = EpochKeys(self._seed, start.epoch)
        number = start.batches_processed
        for indices, numbers, reached in self._batches(start, drawer):
            number += 1
            kept = start.sampler
            if self._sampler.is_stateful:
                # A short batch is the last one, and the sampler may have reset itself since.
                kept = self._sampler.capture(ended=self._is_short(indices))
            led_to[number] = Progress(
                epoch=start.epoch,
                samples_processed=reached * world_size,
                batches_processed=number,
                rng_state=start.rng_state,
                sampler=kept,
                ahead=beyond(start.ahead, reached) if start.ahead else (),
            )
            # Interleaved, as ranks share an order: no two ranks have a sample's key in common.
            positions = numbers if world_size == 1 else numbers * world_size + rank
            yield Task(number, Samples(indices, positions, keys))

    def _is_short(self, indices: Sequence[Any]) -> bool:
        if self._yields_batches:
            return False
        if is_torchs_batch_sampler(self._drawn_from):  # lists of indices in place of indices
            return len(indices[-1]) < int(self._drawn_from.batch_size)
        return len(indices) < self._size

    def _batches(
        self, progress: Progress, drawer: Drawer
    ) -> Iterator[tuple[list[Any], NDArray[np.int64], int]]:
        """Draw the indices of each batch, their numbers, and the number that is reached then.

        What was consumed is left out, in batches of whatever size that was.
        """
        if progress.sampler is not None and progress.sampler["ended"]:
            return
        drawing, reached = self._begin_drawing(progress, drawer)
        size = self._draws_at_once
        while True:
            indices, numbers, reached = drawing.batch(size, reached, progress.ahead)
            if indices is None or (self._drop_last and len(indices) < size):
                self._sampler.capture()  # it has ended, and may have reset itself
                return
            yield indices, numbers, reached
            if self._is_short(indices):
                return  # the sampler has ended, and may begin anew if it is asked once more

    def _begin_drawing(
        self, progress: Progress, drawer: Drawer | None, *, least: int = 0
    ) -> tuple[Drawing, int]:
        """Begin to draw where `progress` is, and `least` after the start of the epoch.

        Return the number of the next index too.
        """
        isolated: Isolated | Shared = Shared()
        if not (self._sampler.is_stateful or self._sampler.draws_nothing):
            key = key_as_int("sampler", self._seed, progress.epoch)
            # Those that draw at their start do so by their first index.
            isolated = Isolated(key, uses=2 if self._sampler.draws_at_start_only else None)
        drawing = Drawing(
            self._sampler,
            self._drawn_from,
            isolated,
            drawer,
            yields_batches=self._yields_batches,
        )
        reached, batches = progress.samples_processed, progress.batches_processed
        reached //= self._topology.world_size
        if self._sampler.is_stateful:
            return drawing, reached
        if not self._counts_batches:
            skipped = max(reached, least)
            missing = drawing.skip(skipped, batches if self._yields_batches else 0)
            if missing and reached:
                _warn_of_end(progress, (skipped - missing) * self._topology.world_size)
            return drawing, reached
        drawn = drawing.skip_batches(max(batches, least), self._draws_at_once)
        if drawn != reached and batches >= least and self._loaded_rank == self._topology.rank:
            msg = (
                f"the batch sampler has changed: its first {batches:,} batches had {reached:,} "
                f"indices when the state was saved, and have {drawn:,} now. Resume with the same."
            )
            raise StateMismatchError(msg)
        return drawing, drawn


def _warn_of_end(progress: Progress, end: int) -> None:
    msg = (
        f"samples_processed is past the end: found {progress.samples_processed:,}, but the "
        f"sampler ended after {end:,} samples. Nothing remains of epoch {progress.epoch}. If that "
        "is wrong, the state is damaged or belongs to other data."
    )
    warn_user(msg, StateMismatchWarning)


def _contents(epoch: int, rank: int, task: Task) -> Delivered:
    samples: Any = task.payload
    return Delivered(
        epoch=epoch,
        position=int(samples.positions[0]) - rank,
        positions=samples.positions,
        indices=samples.indices,
        padding=np.zeros(len(samples.positions), dtype=np.bool_),
    )


def _nothing(reached: Progress, _task: Task) -> Delivered:
    """Say what an empty batch of the user's holds."""
    none = np.zeros(0, dtype=np.int64)
    return Delivered(
        epoch=reached.epoch,
        position=reached.samples_processed,
        positions=none,
        indices=none,
        padding=none.astype(np.bool_),
    )
