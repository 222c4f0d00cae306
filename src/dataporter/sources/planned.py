"""The planned source: dataporter's own order, shared among ranks by a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import OptionError, OptionTypeError, StateMismatchWarning
from dataporter.fetch import Fetches
from dataporter.fetch.randomness import EpochKeys
from dataporter.fetch.tasks import Samples, Task
from dataporter.law import Order, Plan, Tail, Topology
from dataporter.law.epochs import Cursor
from dataporter.law.explanation import Explanation
from dataporter.law.ranges import beyond
from dataporter.law.rest import Excluded, Rest, excluded_in, rest_of, with_span
from dataporter.law.state import Identity, Progress, past_the_end, within
from dataporter.samplers import ResumableSampler, group_topology
from dataporter.sources.arrivals import as_they_come
from dataporter.sources.delivered import Delivered
from dataporter.sources.source import Reading, Result, Resumption, Source
from dataporter.strategies import agreed
from dataporter.user_warnings import warn_user

_ANNOUNCED = 512  # positions in an announcement at most, if a step has fewer
_ANNOUNCEMENTS = 64  # in an epoch at least
_NONE = np.zeros(0, dtype=np.int64)


class PlannedSource(Source):
    """Passes over dataporter's own order.

    With `grows`, each epoch has as many positions as the dataset has samples when it begins.
    Without `in_order`, one rank's batches are delivered as they come.
    """

    world_may_change = True

    def __init__(
        self,
        dataset: Any,
        fetch: Fetches,
        sampler: ResumableSampler,
        *,
        batch_size: int | None,
        tail: Tail,
        seed_is_given: bool,
        awaits_group: bool,
        grows: bool,
        in_order: bool,
    ) -> None:
        super().__init__(dataset, batch_size=batch_size, seed_is_given=seed_is_given)
        self._fetch = fetch
        self._sampler = sampler
        self.tail = tail
        self._awaits_group = awaits_group
        self._grows = grows
        self._in_order = in_order
        self._excluded: Excluded = ()

    @property
    def seed(self) -> int:
        return self._sampler.seed

    @property
    def shuffle(self) -> bool:  # type: ignore[override]  # a constant elsewhere
        return self._sampler.shuffle

    @property
    def topology(self) -> Topology:
        return self._sampler.topology

    @property
    def order_id(self) -> str:
        return self._sampler.order.id

    def order_id_from(self, saved: str) -> str:
        return self._sampler.order.resumed(saved).id

    @property
    def order_names_data(self) -> bool:
        return self._sampler.order.names_data

    @property
    def plan(self) -> Plan:
        """The plan by which ranks share the current epoch: batches, tail, end."""
        return Plan(
            length=self._sampler.order.length,
            batch_size=self.batch_size or 1,
            topology=self.topology,
            tail=self.tail,
        )

    @property
    def num_samples(self) -> int | None:
        return self._length_now() if self._grows else self._num_samples

    @property
    def length(self) -> int | None:
        return self._sampler.order.length

    def _length_now(self) -> int:
        return length_of(self.dataset) if self._grows else self._sampler.order.length

    @property
    def comes_in_order(self) -> bool:
        """True if batches are delivered in order.

        Of several ranks they are: one rank's state holds for all, and cannot say what the others
        have delivered ahead.
        """
        return self._in_order or self.topology.world_size > 1

    def join_process_group(self) -> None:
        group = group_topology()
        if not self._awaits_group or group is None or group.world_size == 1:
            return
        if not self.seed_is_given:
            self._sampler.seed = agreed(self._sampler.seed)
        self._sampler.order_for(self.plan.step_size)
        self._awaits_group = False

    def identity(self) -> Identity:
        return replace(super().identity(), excluded=self._excluded)

    def explained(self, progress: Progress) -> Explanation:
        return replace(super().explained(progress), order=self._sampler.order)

    def fresh(self, epoch: int) -> Progress:
        if self._grows:
            self._sampler.resize(self._length_now())
        return Progress(epoch=epoch)

    def ended(self, progress: Progress) -> Progress:
        rest = self._rest(progress)
        # An uneven last step may have had no part for this rank; the state is that of all ranks.
        missed = rest.plan.num_steps(rest.start)
        return progress._replace(
            samples_processed=rest.reached(missed),
            batches_processed=progress.batches_processed + missed,
            finished=True,
            ahead=(),
        )

    def at(self, start: Progress, position: int) -> Progress:
        length = self._length_now()  # of an epoch that begins now
        if position > length:
            msg = f"position must be in [0, {length:,}], found {position:,}."
            raise OptionError(msg)
        batches = -(-position // self.plan.step_size)
        return start._replace(samples_processed=position, batches_processed=batches)

    def num_batches(self) -> int:
        return replace(self.plan, length=self._length_now()).num_batches()

    def _rest(self, progress: Progress) -> Rest:
        excluded = excluded_in(self._excluded, progress.epoch)
        return rest_of(self.plan, progress.samples_processed, progress.ahead, excluded)

    def exclude(self, epoch: int, start: int, stop: int) -> None:
        if not 0 <= start < stop <= self._sampler.order.length:
            msg = (
                f"a span of positions to exclude must have 0 <= start < stop <= "
                f"{self._sampler.order.length:,}, the length of an epoch; found start={start:,}, "
                f"stop={stop:,}."
            )
            raise OptionError(msg)
        self._excluded = with_span(self._excluded, epoch, start, stop)

    def begin(self, progress: Progress, *, same_workers: bool) -> Reading:
        # The order of now: later passes may have another length, and a load another seed.
        run = _Run(progress, self._sampler.order, self._rest(progress), self.plan)
        reading = Reading(
            tasks=run.tasks(EpochKeys(self.seed, progress.epoch)),
            fetch=self._fetch,
            progress=progress,
            received=run.receiver(),
        )
        return reading if self.comes_in_order else as_they_come(reading)

    def contents_at(self, epoch: int, position: int) -> Delivered:
        self._check_position(position)
        excluded = excluded_in(self._excluded, epoch)
        if any(start <= position < stop for start, stop in excluded):
            excluded = ()  # somebody wants to see what was left out
        rest = rest_of(self.plan, position, excluded)

        def deal(counted: NDArray[np.int64]) -> NDArray[np.float64] | None:
            return self._sampler.order.deal(epoch, rest.around(counted))

        first: NDArray[np.int64] = next(rest.plan.batches(rest.start, deal), _NONE)
        positions = rest.around(first)
        self._check_is_there(epoch, positions[positions >= position])  # others fill the batch up
        samples = self._samples(epoch, positions)
        padding = rest.plan.padding(rest.start, deal)
        return _delivered(epoch, position, samples, padding)

    def samples_at(self, epoch: int, positions: NDArray[np.int64]) -> Samples:
        for end in (positions.min(), positions.max()) if len(positions) else ():
            self._check_position(int(end))
        self._check_is_there(epoch, positions)
        return self._samples(epoch, positions)

    def _samples(self, epoch: int, positions: NDArray[np.int64]) -> Samples:
        order = self._sampler.order
        indices = order.indices(epoch, positions)
        if order.of_batches:
            indices = positions = np.concatenate([_NONE, *indices])
        return Samples(indices, positions, EpochKeys(self.seed, epoch))

    def _check_position(self, position: int) -> None:
        length = self._sampler.order.length
        if not 0 <= position < length:
            msg = f"a position must be in [0, {length:,}), found {position:,}."
            raise OptionError(msg)

    def _check_is_there(self, epoch: int, positions: NDArray[np.int64]) -> None:
        reason = self._sampler.order.gone(epoch, positions)
        if reason is not None:
            raise OptionError(reason)

    def admit(
        self, progress: Progress, saved: Identity, *, same_data: bool, strict: bool
    ) -> tuple[Progress, int | None]:
        # An epoch has the length that it began with, however the dataset has grown since.
        length = saved.length if saved.num_samples == self.num_samples else None
        epoch_length = self._length_now() if length is None or not self._grows else length
        step = self.plan.step_size
        moved = within(progress, epoch_length, step=step, same_data=same_data, strict=strict)
        if moved.epoch == progress.epoch:
            return moved, length
        message = past_the_end(progress, epoch_length, moved)
        warn_user(message, StateMismatchWarning)
        return moved, None  # a later epoch has its own length

    def resume(self, at: Resumption) -> None:
        if self._grows:
            self._sampler.resize(self._length_now() if at.length is None else at.length)
        self._sampler.seed = at.seed
        if at.order is not None:
            ahead = (stop for _, stop in at.progress.ahead)  # these positions were read too
            reached = max([at.progress.samples_processed, *ahead])
            self._sampler.resume_order(at.order, at.progress.epoch, reached)
        self._excluded = at.excluded
        self._awaits_group = False  # whoever loads this state has this seed

    @property
    def epoch_holder(self) -> Any:
        return self._sampler

    def follow_sampler(self, cursor: Cursor) -> None:
        if not self._sampler.is_positioned:
            super().follow_sampler(cursor)
            return
        start = self._sampler.state_dict()
        cursor.seek(start["epoch"], start["samples_processed"])

    def tell_epoch(self, epoch: int) -> None:
        self._sampler.go_to(epoch)
        self.note_epoch_told()

    def _mark(self) -> int | None:
        return self._sampler.times_set


def steps_announced(plan: Plan) -> int:
    """Return the number of steps that an order is told of at a time."""
    return max(min(_ANNOUNCED, plan.length // _ANNOUNCEMENTS) // plan.step_size, 1)


class _Run:
    """The rest of an epoch, as it is read: its tasks, and where the run stands after each."""

    def __init__(self, start: Progress, order: Order, rest: Rest, whole: Plan) -> None:
        self._start = start
        self._order = order
        self._rest = rest
        self._whole = whole  # the plan of the epoch without gaps
        self._position = start.samples_processed  # delivered up to here

    def _deal(self, counted: NDArray[np.int64]) -> NDArray[np.float64] | None:
        return self._order.deal(self._start.epoch, self._rest.around(counted))

    def _find(
        self, start: int, stop: int, low: float, high: float
    ) -> tuple[int, NDArray[np.int64]] | None:
        if self._rest.gaps:  # positions are counted around them
            return None
        return self._order.dealt_between(self._start.epoch, start, stop, low, high)

    def tasks(self, keys: EpochKeys) -> Iterator[Task]:
        """Yield a task for each of this rank's batches."""
        order, rest, epoch, batches = self._order, self._rest, self._start.epoch, 0
        size, announced = rest.plan.batch_size, steps_announced(rest.plan)
        for block in rest.plan.blocks(rest.start, self._deal, self._find):
            positions = rest.around(block)
            indices = order.indices(epoch, positions)
            for first in range(0, len(positions), size):
                if batches % announced == 0:
                    stop = rest.reached(batches + announced)
                    order.announce(epoch, self._position, stop, self._whole)
                batches += 1
                number = self._start.batches_processed + batches
                if order.of_batches:  # a sample comes once an epoch: its index serves as position
                    yield Task(number, Samples(indices[first], indices[first], keys))
                else:
                    batch = slice(first, first + size)
                    yield Task(number, Samples(indices[batch], positions[batch], keys))

    def receiver(self) -> Callable[[Task, Any], Result]:
        """Return what takes note of deliveries."""
        start, contents, reached = self._start, self._contents, self._rest.reached
        epoch, batches = start.epoch, start.batches_processed

        def received(task: Task, batch: Any) -> Result:
            at = self._position = reached(task.number - batches)
            if not start.ahead:
                return (Progress(epoch, at, task.number), (contents, task)), batch
            progress = Progress(epoch, at, task.number, ahead=beyond(start.ahead, at))
            return (progress, (contents, task)), batch

        return received

    def _contents(self, task: Task) -> Delivered:
        samples: Any = task.payload
        before = task.number - self._start.batches_processed - 1
        rest, step = self._rest, self._rest.plan.step_size
        padding = rest.plan.padding(rest.start + before * step, self._deal)
        return _delivered(self._start.epoch, rest.reached(before), samples, padding)


def _delivered(
    epoch: int, position: int, samples: Samples, padding: NDArray[np.bool_]
) -> Delivered:
    if len(padding) != len(samples.positions):  # an order of batches: one position is all of it
        padding = np.repeat(padding, len(samples.positions))
    return Delivered(
        epoch=epoch,
        position=position,
        positions=samples.positions,
        indices=samples.indices,
        padding=padding,
    )


def length_of(dataset: Any) -> int:
    """Return the length of a dataset, or say that it has none."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        msg = (
            f"{type(dataset).__name__} has no length, so it has no order to resume in "
            f"({type(error).__name__}: {error}). Give it __len__, or pass a sampler."
        )
        raise OptionTypeError(msg) from error
