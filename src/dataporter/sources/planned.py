"""The planned source: dataporter's own order, shared among ranks by a plan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from dataporter.errors import (
    OptionError,
    OptionTypeError,
    StateMismatchError,
    StateMismatchWarning,
)
from dataporter.fetch import Fetcher
from dataporter.fetch.randomness import EpochKeys
from dataporter.law import Order, Plan, Tail, Topology
from dataporter.law.datasets import explanation_rows_of, leaves_of
from dataporter.law.epochs import Place
from dataporter.law.explanation import Explanation
from dataporter.law.rest import Excluded, Rest, clipped, excluded_in, rest_of, with_span
from dataporter.law.shared_order import SharedOrder
from dataporter.law.state import Identity, Progress, past_the_end, within
from dataporter.ranks import agreed, check_who_shares, is_several
from dataporter.samplers import ResumableSampler
from dataporter.sources.readings import Reading, as_they_come
from dataporter.sources.shared_epoch import Run, SharedEpoch
from dataporter.sources.source import EpochHolder, Resumption, Source
from dataporter.user_warnings import warn_user


class ShownSampler(EpochHolder):
    """The sampler that shows a source's order, and where the run stands in it."""

    def __init__(self, sampler: ResumableSampler) -> None:
        super().__init__(partial(_the_one, sampler))  # a method of its own would make a cycle
        self._sampler = sampler
        self._place: Place | None = None

    def start(self) -> tuple[int, int | None]:
        if not self._sampler.is_positioned:
            return super().start()
        start = self._sampler.state_dict()
        return start["epoch"], start["samples_processed"]

    def attach(self, place: Place) -> None:
        self._place = place
        self.tell(place.progress.epoch)

    def tell(self, epoch: int) -> None:
        if self._place is not None:
            self._sampler.read_at(self._place, epoch)
        self.note_told()

    def _seen(self) -> int | None:
        return self._sampler.times_set


def _the_one(sampler: ResumableSampler) -> ResumableSampler:
    return sampler


class PlannedSource(Source):
    """Passes over dataporter's own order, shared by the ranks that `shared` has at the moment.

    With `grows`, each epoch has as many positions as the dataset has samples when it begins.
    Without `in_order`, one rank's batches are delivered as they come.
    """

    world_may_change = True

    def __init__(
        self,
        dataset: Any,
        fetch: Fetcher,
        shared: SharedOrder,
        *,
        epochs: EpochHolder,
        batch_size: int | None,
        tail: Tail,
        grows: bool,
        in_order: bool,
    ) -> None:
        super().__init__(
            dataset, batch_size=batch_size, seed_is_given=shared.seed_is_given, epochs=epochs
        )
        self._fetch = fetch
        self._shared = shared
        self.shuffle = shared.shuffle
        self.tail = tail
        # The ranks that the order was made for, until a pass or a state holds it.
        self._ordered_for = shared.topology if shared.ranks.follow_group else None
        self._grows = grows
        self._in_order = in_order
        self._excluded: Excluded = ()
        # Of the epochs that have begun here, if the dataset grows.
        self._lengths: dict[int, int] = {}

    @property
    def seed(self) -> int:
        return self._shared.seed

    @property
    def topology(self) -> Topology:
        return self._shared.topology

    @property
    def plan(self) -> Plan:
        """The plan by which ranks share the current epoch: batches, tail, end."""
        return Plan(
            length=self._shared.order.length,
            batch_size=self.batch_size or 1,
            topology=self.topology,
            tail=self.tail,
        )

    @property
    def length(self) -> int | None:
        return self._shared.order.length

    def _length_now(self) -> int:
        return length_of(self.dataset) if self._grows else self._shared.order.length

    def _samples_now(self) -> int | None:
        return self._length_now() if self._grows else self._num_samples

    def prepare(self) -> None:
        super().prepare()
        shared, ranks = self._shared, self._shared.ranks
        if ranks.follow_group:
            check_who_shares()
        if not is_several():
            return
        if ranks.seed_is_open and not self.seed_is_given:
            shared.seed = agreed(shared.seed)
        if self._ordered_for not in (None, ranks.topology):
            shared.ask_again(self.batch_size or 1)
        self._hold_order()

    def _hold_order(self) -> None:
        """Keep seed and order from now on: a pass, or another run, has them."""
        self._shared.ranks = replace(self._shared.ranks, seed_is_open=False)
        self._ordered_for = None

    def identity(self) -> Identity:
        now, length = self._samples_now(), self.length
        return replace(
            self._identity(self._shared.order.id),
            num_samples=now,
            length=None if length == now else length,
            excluded=self._excluded,
        )

    def identity_after(self, saved: Identity) -> Identity:
        identity, order = super().identity_after(saved), self._shared.order
        if order.names_data:  # it may have more data now
            identity = replace(
                identity, num_samples=saved.num_samples, fingerprint=saved.fingerprint
            )
        return replace(identity, order=order.resumed(saved.order).id)

    def explained(self, progress: Progress) -> Explanation:
        rows = explanation_rows_of(self.dataset)
        return replace(super().explained(progress), order=self._shared.order, of_dataset=rows)

    def fresh(self, epoch: int) -> Progress:
        if self._grows:
            self._lengths[epoch] = length = self._length_now()
            self._shared.resize(length)
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

    def at(self, progress: Progress, position: int) -> Progress:
        length = self._length_now()  # of an epoch that begins now
        if position > length:
            msg = f"position must be in [0, {length:,}], found {position:,}."
            raise OptionError(msg)
        batches = -(-position // self.plan.step_size)
        start = super().at(progress, 0)
        return start._replace(samples_processed=position, batches_processed=batches)

    def num_batches(self) -> int:
        return replace(self.plan, length=self._length_now()).num_batches()

    def _order_of(self, epoch: int) -> Order:
        """Return the order of an epoch, with the length that the epoch has."""
        order, length = self._shared.order, self._length_of(epoch)
        return order if order.length == length else replace(order, length=length)  # type: ignore[type-var]  # a dataclass

    def _length_of(self, epoch: int) -> int:
        """Return the number of positions of an epoch: a later one begins with what is there now."""
        if not self._grows:
            return self._shared.order.length
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
        run = Run(
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
        # One rank's state holds for all, and cannot say what the others have delivered ahead.
        in_order = self._in_order or self.topology.world_size > 1
        return reading if in_order else as_they_come(reading)

    def shared_epoch(self, epoch: int, position: int) -> SharedEpoch:
        length = self._length_of(epoch)
        if not 0 <= position < length:
            msg = f"a position of epoch {epoch:,} must be in [0, {length:,}), found {position:,}."
            raise OptionError(msg)
        excluded = excluded_in(self._excluded, epoch)
        if any(start <= position < stop for start, stop in excluded):
            excluded = ()  # somebody wants to see what was left out
        rest = rest_of(self._plan_of(epoch), position, excluded)
        return SharedEpoch(self._order_of(epoch), rest, EpochKeys(self.seed, epoch))

    def admit(
        self, progress: Progress, saved: Identity, *, same_data: bool, strict: bool
    ) -> tuple[Progress, int | None]:
        # An epoch has the length that it began with, however the dataset has grown since.
        length = saved.length if saved.num_samples == self._samples_now() else None
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
            self._shared.resize(length)
        self._shared.seed = at.seed
        if at.order is not None:
            ahead = (stop for _, stop in at.progress.ahead)  # these positions were read too
            reached = max([at.progress.samples_processed, *ahead])
            self._shared.resume(at.order, at.progress.epoch, reached)
        epoch = at.progress.epoch
        self._excluded = clipped(at.excluded, epoch, self._length_of(epoch))
        self._hold_order()


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
