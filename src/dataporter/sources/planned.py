"""The planned source: dataporter's own order, shared among ranks by a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import (
    OptionError,
    OptionTypeError,
    StateMismatchError,
    StateMismatchWarning,
)
from dataporter.fetch import Fetcher, Partial
from dataporter.fetch.randomness import EpochKeys
from dataporter.fetch.tasks import Samples, Task
from dataporter.law import Order, Plan, Tail, Topology
from dataporter.law.datasets import Leaf, explanation_rows_of, leaves_of
from dataporter.law.epochs import Cursor
from dataporter.law.explanation import Explanation
from dataporter.law.ranges import beyond
from dataporter.law.rest import Excluded, Rest, clipped, excluded_in, rest_of, with_span
from dataporter.law.state import Identity, Progress, past_the_end, within
from dataporter.ranks import check_who_shares, group_topology
from dataporter.samplers import ResumableSampler
from dataporter.sources.arrivals import as_they_come
from dataporter.sources.delivered import Delivered
from dataporter.sources.left_out import without_left_out
from dataporter.sources.source import Contents, Reading, Result, Resumption, Source
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
        fetch: Fetcher,
        sampler: ResumableSampler,
        *,
        batch_size: int | None,
        tail: Tail,
        seed_is_given: bool,
        follows_group: bool,
        seed_awaits_group: bool,
        grows: bool,
        in_order: bool,
    ) -> None:
        super().__init__(dataset, batch_size=batch_size, seed_is_given=seed_is_given)
        self._fetch = fetch
        self._sampler = sampler
        self.tail = tail
        self._follows_group = follows_group
        self._seed_awaits_group = seed_awaits_group
        # The ranks that the order was made for, until a pass or a state holds it.
        self._ordered_for: Topology | None = sampler.topology if follows_group else None
        self._grows = grows
        self._in_order = in_order
        self._excluded: Excluded = ()
        # Of the epochs that have begun here, if the dataset grows.
        self._lengths: dict[int, int] = {}

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
        if self._follows_group:
            check_who_shares()
        group = group_topology()
        if group is None or group.world_size == 1:
            return
        if self._seed_awaits_group and not self.seed_is_given:
            self._sampler.seed = agreed(self._sampler.seed)
        if self._ordered_for not in (None, self.topology):
            self._sampler.order_for(self.plan.step_size)
        self._seed_awaits_group, self._ordered_for = False, None

    def identity(self) -> Identity:
        return replace(super().identity(), excluded=self._excluded)

    def explained(self, progress: Progress) -> Explanation:
        rows = explanation_rows_of(self.dataset)
        return replace(super().explained(progress), order=self._sampler.order, of_dataset=rows)

    def fresh(self, epoch: int) -> Progress:
        if self._grows:
            self._lengths[epoch] = length = self._length_now()
            self._sampler.resize(length)
        if self._excluded:
            self._excluded = clipped(self._excluded, epoch, self._length_of(epoch))
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

    def _order_of(self, epoch: int) -> Order:
        """Return the order of an epoch, with the length that the epoch has."""
        order, length = self._sampler.order, self._length_of(epoch)
        return order if order.length == length else replace(order, length=length)  # type: ignore[type-var]  # a dataclass

    def _length_of(self, epoch: int) -> int:
        """Return the number of positions of an epoch: a later one begins with what is there now."""
        if not self._grows:
            return self._sampler.order.length
        if epoch in self._lengths:
            return self._lengths[epoch]
        now = self._length_now()
        if epoch < max(self._lengths, default=0) and {*self._lengths.values()} != {now}:
            msg = (
                f"the length of epoch {epoch:,} is unknown: the dataset has changed its length "
                f"(now {now:,} samples) since an epoch that did not begin in this process. Load a "
                f"state of epoch {epoch:,} first, which holds its length."
            )
            raise OptionError(msg)
        return now

    def _plan_of(self, epoch: int) -> Plan:
        return replace(self.plan, length=self._length_of(epoch))

    def _rest(self, progress: Progress) -> Rest:
        excluded, plan = excluded_in(self._excluded, progress.epoch), self._plan_of(progress.epoch)
        return rest_of(plan, progress.samples_processed, progress.ahead, excluded)

    def exclude(self, epoch: int, start: int, stop: int) -> None:
        length = self._length_of(epoch)
        if not 0 <= start < stop <= length:
            msg = (
                f"a span of positions to exclude must have 0 <= start < stop <= {length:,}, the "
                f"length of epoch {epoch:,}; found start={start:,}, stop={stop:,}."
            )
            raise OptionError(msg)
        self._excluded = with_span(self._excluded, epoch, start, stop)

    def begin(self, progress: Progress, *, same_workers: bool) -> Reading:
        # The order of now: later passes may have another length, and a load another seed.
        epoch, rest = progress.epoch, self._rest(progress)
        order, whole = self._order_of(epoch), self._plan_of(epoch)
        run = _Run(
            progress,
            order,
            rest,
            whole,
            self._fetch,
            EpochKeys(self.seed, epoch),
            leaves=[leaf for leaf in leaves_of(self.dataset) if leaf.leaf in order.leaves]
            if order.leaves
            else [],
        )
        reading = Reading(
            tasks=run.tasks(),
            fetch=self._fetch,
            progress=progress,
            received=run.receiver(),
        )
        return reading if self.comes_in_order else as_they_come(reading)

    def contents_at(self, epoch: int, position: int) -> Delivered:
        shared = self._shared_at(epoch, position)
        own = shared.positions(shared.rest.start)
        self._check_is_there(epoch, own[own >= position])  # others fill the batch up
        samples = shared.samples(own)
        return _delivered(epoch, position, samples, shared.padding(shared.rest.start))

    def others_at(self, epoch: int, position: int) -> Iterator[Samples]:
        shared = self._shared_at(epoch, position)
        return shared.of_others(shared.rest.start)

    def _shared_at(self, epoch: int, position: int) -> _Shared:
        self._check_position(epoch, position)
        excluded = excluded_in(self._excluded, epoch)
        if any(start <= position < stop for start, stop in excluded):
            excluded = ()  # somebody wants to see what was left out
        rest = rest_of(self._plan_of(epoch), position, excluded)
        return _Shared(self._order_of(epoch), rest, EpochKeys(self.seed, epoch))

    def samples_at(self, epoch: int, positions: NDArray[np.int64]) -> Samples:
        for end in (positions.min(), positions.max()) if len(positions) else ():
            self._check_position(epoch, int(end))
        self._check_is_there(epoch, positions)
        return _samples(self._order_of(epoch), positions, EpochKeys(self.seed, epoch))

    def _check_position(self, epoch: int, position: int) -> None:
        length = self._length_of(epoch)
        if not 0 <= position < length:
            msg = f"a position of epoch {epoch:,} must be in [0, {length:,}), found {position:,}."
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
        if self._grows and length is not None and length > self._length_now():
            if strict:
                msg = (
                    f"the epoch of the state has {length:,} positions, and this dataset has "
                    f"{self._length_now():,} samples: some of the rest are not there. Resume with "
                    "the dataset as it was when the epoch began, or pass strict=False to continue "
                    "the epoch with the samples that are there."
                )
                raise StateMismatchError(msg)
            length = None
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
            length = self._length_now() if at.length is None else at.length
            self._lengths = {at.progress.epoch: length}  # others may have begun elsewhere
            self._sampler.resize(length)
        self._sampler.seed = at.seed
        if at.order is not None:
            ahead = (stop for _, stop in at.progress.ahead)  # these positions were read too
            reached = max([at.progress.samples_processed, *ahead])
            self._sampler.resume_order(at.order, at.progress.epoch, reached)
        epoch = at.progress.epoch
        self._excluded = clipped(at.excluded, epoch, self._length_of(epoch))
        # Whoever loads this state has this seed, and this order.
        self._seed_awaits_group, self._ordered_for = False, None

    @property
    def epoch_holder(self) -> Any:
        return self._sampler

    def follow_sampler(self, cursor: Cursor) -> None:
        if self._sampler.is_positioned:
            start = self._sampler.state_dict()
            cursor.seek(start["epoch"], start["samples_processed"])
        else:
            super().follow_sampler(cursor)
        self.tell_epoch(cursor.progress.epoch, cursor)

    def tell_epoch(self, epoch: int, cursor: Cursor) -> None:
        self._sampler.read_by(cursor, epoch)
        self.note_epoch_told()

    def _mark(self) -> int | None:
        return self._sampler.times_set


def steps_announced(plan: Plan) -> int:
    """Return the number of steps that an order is told of at a time."""
    return max(min(_ANNOUNCED, plan.length // _ANNOUNCEMENTS) // plan.step_size, 1)


class _Shared:
    """The rest of an epoch as ranks share it. Steps begin `at` positions counted around gaps."""

    def __init__(self, order: Order, rest: Rest, keys: EpochKeys) -> None:
        self.order = order
        self.rest = rest
        self.keys = keys

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
        return _samples(self.order, positions, self.keys)

    def of_others(self, at: int) -> Iterator[Samples]:
        """Yield the batches of the other ranks in the step, from the next rank on."""
        topology = self.rest.plan.topology
        ranks = range(topology.rank + 1, topology.rank + topology.world_size)
        shares = (self.positions(at, rank % topology.world_size) for rank in ranks)
        return (self.samples(share) for share in shares if len(share))


class _Run(_Shared):
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
        return _delivered(self.keys.epoch, position, samples, padding)


def _samples(order: Order, positions: NDArray[np.int64], keys: EpochKeys) -> Samples:
    indices = order.indices(keys.epoch, positions)
    if order.of_batches:
        indices = positions = np.concatenate([_NONE, *indices])
    return Samples(indices, positions, keys)


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
