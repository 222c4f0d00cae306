"""A state in words: how far a run is, what comes next, what it takes to go on from there.

Everything is worked out from the state alone, without a dataset, a loader or a process: a
checkpoint is explained far away from the machine that wrote it as a live loader is. So what
a state does not say (whether an iterable is near its end, how long a sampler of the user's
own goes on) is not said here either. A live loader adds two things: whether it leaves out what
fills no step, which is for the next one to choose, and its order, where that needs the dataset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from dataporter.law import Order, Plan, SequentialOrder, ShuffledOrder, Tail, Topology
from dataporter.law.lane_states import Lanes, LaneState
from dataporter.law.permutation import MAX_LENGTH
from dataporter.law.ranges import counted_to, size_of
from dataporter.law.rest import Excluded, Rest, excluded_in, rest_of
from dataporter.law.state import Identity, Progress, parse_state
from dataporter.law.torchdata_state import TorchdataState, is_torchdata_state, read_torchdata_state
from dataporter.layout import Row, counted, laid_out, table

_SHOWN = 4  # indices that come next
_SHOWN_LANES = 8  # and excluded spans


class Explains(Protocol):
    """A state to be shown: words under headings for people, builtins for machines."""

    def rows(self) -> list[Row]: ...

    def as_dict(self) -> dict[str, Any]: ...


def is_state(found: object) -> bool:
    """Return True if this looks like a loader's state, dataporter's or torchdata's.

    >>> is_state({"epoch": 3, "samples_processed": 12, "batches_processed": 3})
    True
    """
    # Two names that no other library uses together: a damaged state is to be known as one.
    ours = isinstance(found, Mapping) and {"samples_processed", "batches_processed"} <= found.keys()
    return ours or is_torchdata_state(found)


def explain(state: Mapping[str, Any]) -> Explains:
    """Explain what `state_dict()` returned, or torchdata's; what is neither raises.

    >>> from dataporter import ResumableDataLoader
    >>> loader = ResumableDataLoader(range(10), batch_size=3, shuffle=True, seed=7)
    >>> batch = next(iter(loader))
    >>> explain(loader.state_dict())
    epoch      0
    position   3 of 10 samples (30.0 %), after 1 batch
    next       position 3: samples 2, 8, 6, 0, ... of the dataset; 7 samples remain,
               2 full steps and a rest of 1
    order      shuffled by seed 7
    saved on   1 rank, batches of 3
    to resume  the same 10 samples, shuffle=True, seed=7 or none given; batch size,
               ranks and workers may differ
    """
    if is_torchdata_state(state):
        return TorchdataExplanation(found=read_torchdata_state(state))
    identity, progress = parse_state(state)
    return Explanation(identity=identity, progress=progress)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation:
    """A state in words, shown as text in 80 columns."""

    identity: Identity
    progress: Progress
    tail: Tail = "uneven"
    order: Order | None = None
    of_dataset: tuple[Row, ...] = ()

    def __repr__(self) -> str:
        return laid_out(self.rows())

    def _repr_html_(self) -> str:
        return table(self.rows())

    @property
    def length(self) -> int | None:
        """Positions in an epoch, None where only the sampler or the stream knows."""
        identity = self.identity
        if self._is_sampled or (self._is_iterable and identity.world_size > 1):
            return None
        draws = re.search(r" (\d+) draws,", identity.order)
        if draws:
            return int(draws[1])
        return identity.num_samples if identity.length is None else identity.length

    @property
    def delivered(self) -> int:
        """Samples of the epoch that were delivered, in their turn or ahead of it."""
        excluded = excluded_in(self.identity.excluded, self.progress.epoch)
        in_turn = counted_to(excluded, self.progress.samples_processed)
        return in_turn + size_of(self.progress.ahead)

    @property
    def remaining(self) -> int | None:
        """Samples of the epoch that are to come, None where nobody knows."""
        if self.progress.finished:
            return 0
        return None if self.length is None else self.rest(self.length).remaining

    def rest(self, length: int) -> Rest:
        """Return the rest of an epoch of `length` positions."""
        plan = Plan(
            length=length,
            batch_size=self.identity.batch_size or 1,
            topology=Topology(world_size=self.identity.world_size),
            tail=self.tail,
        )
        progress = self.progress
        excluded = excluded_in(self.identity.excluded, progress.epoch)
        return rest_of(plan, progress.samples_processed, progress.ahead, excluded)

    @property
    def next_indices(self) -> list[int]:
        """The dataset's indices that come first after a resume, where the order tells."""
        order = self._order()
        if order is None or not self.remaining:
            return []
        rest = self.rest(order.length)
        numbers = rest.start + np.arange(min(_SHOWN, self.remaining), dtype=np.int64)
        positions = rest.around(numbers)
        found = order.indices(self.progress.epoch, positions)
        first = np.concatenate(list(found))[:_SHOWN] if order.of_batches else found
        return [int(index) for index in first]

    @property
    def where(self) -> str:
        """The place where the run stands, in one phrase."""
        epoch = f"epoch {self.progress.epoch:,}"
        if self.progress.finished:
            return f"{epoch} finished"
        return f"{epoch}, {self._position()}" if self.delivered else f"{epoch}, at its start"

    @property
    def order_argument(self) -> str:
        """The argument that gives a loader this order."""
        return f"shuffle={self.identity.shuffle}" if self._is_own else self.identity.order

    def rows(self) -> list[Row]:
        """Headings, and what there is to say under each."""
        progress, identity = self.progress, self.identity
        each = ""
        if identity.world_size > 1:  # ranks count their own lanes, but share an order
            each = " on this rank" if self._is_iterable else " on each rank"
        position = f"{self._position()}, after {counted(progress.batches_processed, 'batch')}{each}"
        rows = [
            ("epoch", f"{progress.epoch:,}" + (", finished" if progress.finished else "")),
            ("position", position),
            ("next", self._next()),
            ("order", self._order_in_words()),
        ]
        if self.order is not None:
            rows += self.order.explained(progress.epoch, progress.samples_processed)
        rows += self.of_dataset
        if identity.excluded:
            rows.append(("excluded", _excluded_in_words(identity.excluded)))
        if progress.lanes is not None:
            rows.append(("lanes", _lanes_in_words(progress.lanes)))
        rows += [
            ("saved on", f"{counted(identity.world_size, 'rank')}, {self._batches()}"),
            ("to resume", "; ".join(self.needs())),
        ]
        return rows

    def needs(self) -> Iterator[str]:
        """Say what a loader must have to go on from here, and what it is free to change."""
        identity, count = self.identity, self.identity.num_samples
        samples = "iterable" if count is None else counted(count, "sample")
        marked = f" (fingerprint {identity.fingerprint})" if identity.fingerprint else ""
        seed = f"seed={identity.seed} or none given"
        if self._is_iterable:
            yield f"the same {samples}{marked}, {seed}"
            yield from self._needs_of_a_stream()
        elif self._is_sampled:
            yield f"the same {samples}{marked} and sampler, {seed}"
            free = "workers" if identity.batch_size is None else "batch size and workers"
            yield f"{self._on_ranks()}; {free} may differ"
        else:
            order = "the same weights" if self._is_weighted else f"shuffle={identity.shuffle}"
            yield f"the same {samples}{marked}, {order}, {seed}"
            if self.progress.lanes is None:
                yield "batch size, ranks and workers may differ"
            else:  # the dataset has a state
                yield f"{self._on_ranks()}; batch size and workers may differ"

    def _on_ranks(self) -> str:
        identity = self.identity
        if identity.rank is None:
            return f"on {counted(identity.world_size, 'rank')}"
        return f"as rank {identity.rank} of {identity.world_size}"

    def as_dict(self) -> dict[str, Any]:
        """Return the same as builtins, for JSON."""
        identity, progress = self.identity, self.progress
        lanes = progress.lanes
        return {
            "kind": "dataporter",
            **asdict(identity),
            "epoch": progress.epoch,
            "finished": progress.finished,
            "position": progress.samples_processed,
            "length": self.length,
            "delivered": self.delivered,
            "remaining": self.remaining,
            "batches": progress.batches_processed,
            "next_indices": self.next_indices,
            "lanes": None if lanes is None else _lanes_as_dict(lanes),
            "words": dict(self.rows()),
        }

    @property
    def _is_iterable(self) -> bool:
        return self.identity.order.startswith("lanes of ")

    @property
    def _is_sampled(self) -> bool:
        return self.identity.order.startswith(("sampler ", "batch_sampler "))

    @property
    def _is_weighted(self) -> bool:
        return self.identity.order.startswith("weighted")

    @property
    def _is_own(self) -> bool:
        """True if `shuffle` decides the order, with or without the dataset."""
        return not (self._is_iterable or self._is_sampled or self._is_weighted)

    def _order(self) -> Order | None:
        if self.order is not None:
            return self.order
        length, seed = self.length, self.identity.seed
        if length is None or length > MAX_LENGTH:
            return None
        for kind in (SequentialOrder, ShuffledOrder):
            if self.identity.order == kind.id:
                return kind(length, seed)
        return None

    def _position(self) -> str:
        at, length = self.progress.samples_processed, self.length
        ahead = size_of(self.progress.ahead)
        more = f" and {ahead:,} ahead of their turn" if ahead else ""
        if not length:
            return f"{counted(at, 'sample')}{more} delivered"
        # Rounded down: 100 % is said of a whole epoch only.
        tenths = 1000 * (at + ahead) // length
        share = f"{tenths // 10}.{tenths % 10} %"
        is_batch = self.order is not None and self.order.of_batches
        return f"{at:,} of {counted(length, 'batch' if is_batch else 'sample')}{more} ({share})"

    def _next(self) -> str:
        progress = self.progress
        if progress.finished:
            return f"epoch {progress.epoch + 1:,}, from its start"
        if self._has_ended:
            return (
                f"nothing of epoch {progress.epoch:,}, whose last batch was delivered; then "
                f"epoch {progress.epoch + 1:,}"
            )
        if self._is_iterable or self._is_sampled:
            whose = "sampler's" if self._is_sampled else "lanes'"
            return f"the {whose} batch {progress.batches_processed + 1:,} of this epoch"
        return f"position {progress.samples_processed:,}{self._samples()}; {self._rest()}"

    @property
    def _has_ended(self) -> bool:
        """True if a resume finds nothing more in this epoch."""
        sampler, lanes = self.progress.sampler, self.progress.lanes
        if sampler is not None and sampler["ended"]:
            return True
        if self._is_iterable:
            return lanes is not None and all(lane.ended for lane in lanes.each.values())
        return self.delivered > 0 and self.remaining == 0

    def _samples(self) -> str:
        indices = self.next_indices
        if not indices:
            return ""
        more = ", ..." if (self.remaining or 0) > len(indices) else ""
        plural = "s" if len(indices) > 1 else ""
        return f": sample{plural} {', '.join(map(str, indices))}{more} of the dataset"

    def _rest(self) -> str:
        remaining = self.remaining or 0
        full, fewer = divmod(remaining, self._step)
        steps = counted(full, "full step") + (f" and a rest of {fewer:,}" if fewer else "")
        rest = self.rest(self.length or 0)
        left_out = max(rest.plan.length - rest.start, 0) - remaining
        dropped = f"; {left_out:,} more fill no step and are left out" if left_out else ""
        verb = "remains" if remaining == 1 else "remain"
        return f"{counted(remaining, 'sample')} {verb}, {steps}{dropped}"

    @property
    def _step(self) -> int:
        """Samples that all ranks take at once."""
        return self.identity.world_size * (self.identity.batch_size or 1)

    def _order_in_words(self) -> str:
        identity = self.identity
        if identity.order == SequentialOrder.id:
            return f"in sequence, samples' randomness by seed {identity.seed}"
        if identity.order == ShuffledOrder.id:
            return f"shuffled by seed {identity.seed}"
        if self._is_own and identity.shuffle:
            return f"shuffled by seed {identity.seed} ({identity.order})"
        return f"{identity.order}, seed {identity.seed}"

    def _batches(self) -> str:
        size = self.identity.batch_size
        if size is not None:
            return f"batches of {size:,}"
        return "batches of the batch sampler" if self._is_sampled else "no batches"

    def _needs_of_a_stream(self) -> Iterator[str]:
        lanes, ranks = self.progress.lanes, self.identity.world_size
        if lanes is None:
            return
        if len(lanes.each) < lanes.count:
            yield (
                f"lanes={lanes.count}, on {counted(ranks, 'rank')}, or on another number with "
                "the states of all ranks as a list"
            )
        else:
            yield f"{self._on_ranks()}; it stays in {counted(lanes.count, 'lane')}"
        again = sum(lane.batches - lane.at for lane in lanes.each.values() if not lane.ended)
        if again and not self.progress.finished:
            yield (
                f"batches of {self.identity.batch_size}, since {counted(again, 'batch')} must be "
                "read again and dropped; workers may differ"
            )
        else:
            yield "batch size and workers may differ"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TorchdataExplanation:
    """A state of torchdata's StatefulDataLoader in words."""

    found: TorchdataState

    def __repr__(self) -> str:
        return laid_out(self.rows())

    def _repr_html_(self) -> str:
        return table(self.rows())

    @property
    def batches(self) -> int:
        """Batches that were delivered."""
        return self.found.steps + self.found.steps_since

    def rows(self) -> list[Row]:
        """Headings, and what there is to say under each."""
        found = self.found
        after = (
            "the next epoch, from its start" if found.finished else f"batch {self.batches + 1:,}"
        )
        position = counted(self.batches, "batch") + (", finished" if found.finished else "")
        shuffled = "sampler=RandomSampler(dataset) of the same module, since it was shuffled"
        rows = [
            ("saved by", "torchdata's StatefulDataLoader, which counts no epochs"),
            ("position", position),
            ("next", after),
        ]
        if found.lanes is not None:
            rows.append(("lanes", _lanes_in_words(found.lanes)))
        resume = "the same data; StatefulDataLoader of dataporter.stateful_dataloader"
        rows.append(
            ("to resume", resume if found.generator is None else f"{resume} with {shuffled}")
        )
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return the same as builtins, for JSON."""
        lanes = self.found.lanes
        return {
            "kind": "torchdata",
            "finished": self.found.finished,
            "batches": self.batches,
            "lanes": None if lanes is None else _lanes_as_dict(lanes),
            "words": dict(self.rows()),
        }


def summary(loader: Any, explanation: Explanation, topology: Topology) -> str:
    """Say what a loader is and where it stands, in one line."""
    identity = explanation.identity
    size = "" if identity.num_samples is None else f" of {counted(identity.num_samples, 'sample')}"
    parts = [
        f"{type(loader.dataset).__name__}{size}",
        f"batch_size={identity.batch_size}",
        explanation.order_argument,
        f"seed={identity.seed}",
        f"rank {topology.rank} of {topology.world_size}",
        f"num_workers={loader.num_workers}",
    ]
    return f"<{type(loader).__name__}: {', '.join(parts)}; {explanation.where}>"


def _excluded_in_words(excluded: Excluded) -> str:
    spans = [f"{start:,} to {stop - 1:,} of epoch {epoch:,}" for epoch, start, stop in excluded]
    more = ", ..." if len(spans) > _SHOWN_LANES else ""
    return f"positions {', '.join(spans[:_SHOWN_LANES])}{more}"


def _lanes_in_words(lanes: Lanes) -> str:
    numbers = sorted(lanes.each)
    here = "" if len(numbers) == lanes.count else f", of which this state has {_listed(numbers)}"
    each = [_lane_in_words(lanes.each[lane]) for lane in numbers]
    shown = ", ".join(each[:_SHOWN_LANES]) + (", ..." if len(each) > _SHOWN_LANES else "")
    return f"{lanes.count:,}{here}; batches delivered of each: {shown}"


def _listed(numbers: list[int]) -> str:
    more = ", ..." if len(numbers) > _SHOWN_LANES else ""
    return ", ".join(map(str, numbers[:_SHOWN_LANES])) + more


def _lane_in_words(lane: LaneState) -> str:
    return f"{lane.batches:,}" + (" (ended)" if lane.ended else "")


def _lanes_as_dict(lanes: Lanes) -> dict[str, Any]:
    each = {
        str(number): {"batches": lane.batches, "ended": lane.ended, "state_at": lane.at}
        for number, lane in sorted(lanes.each.items())
    }
    return {"count": lanes.count, "last": lanes.last, "each": each}
