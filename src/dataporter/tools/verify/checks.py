"""Which interruptions a loader is put through: where, and what is different afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataporter.tools.verify.remaking import Facts

_SOME_STEPS = 3  # that a run makes between two interruptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A run from one interruption to the next, on every rank, with these options."""

    options: dict[str, Any] = field(default_factory=dict)
    world_size: int = 1
    steps: int | None = None  # to the end of what is compared
    kills: tuple[int, ...] = ()
    twice: bool = False  # go back to the start of it, in the same process
    worker: tuple[int, int] | None = None  # the dataset is told to be in this one of so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """The uninterrupted run is left after `start` batches, and goes on in new processes."""

    name: str
    start: int
    legs: tuple[Leg, ...] = (Leg(),)
    in_new_interpreter: bool = False
    at_another_time: bool = False
    by_sample: bool = False  # batches are others than they were, so their samples are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Something that is not tried, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variety:
    """What is varied; None for what suits the loader."""

    workers: Sequence[int] | None = None
    batch_sizes: Sequence[int] | None = None
    world_sizes: Sequence[int] | None = None
    points: int = 3


def interruptions(
    facts: Facts,
    epochs: Sequence[int],
    variety: Variety,
    chance: random.Random,
    *,
    why_not_importable: str,
) -> Iterator[Interruption | Left]:
    """What to put a loader through whose batches were of these epochs, what tells most first."""
    points = _Points(epochs, variety.points, chance)
    # New interpreters take seconds to start, so they do that while something else is tried.
    if why_not_importable:
        reason = f"another process cannot import this factory: {why_not_importable}"
        yield Left(name="a new interpreter", reason=reason)
    else:
        name = "the same run in a new interpreter"
        yield Interruption(name=name, start=0, in_new_interpreter=True)
    # In one process, since workers that are spawned have a clock of their own.
    inline = Leg(options={"num_workers": 0})
    name = "the same run at another time"
    yield Interruption(name=name, start=0, legs=(inline,), at_another_time=True)
    yield from _with_workers(facts, points, variety.workers)
    yield from _with_kills(facts, points)
    if not why_not_importable:
        name = f"{_after(1)}, in a new interpreter"
        yield Interruption(name=name, start=1, in_new_interpreter=True)
    yield from _in_one_process(facts, points)
    yield from _with_batch_sizes(facts, points, variety.batch_sizes)
    yield from _with_world_sizes(facts, points, variety.world_sizes)
    if not why_not_importable:
        name = "the same run in one more interpreter"
        yield Interruption(name=name, start=0, in_new_interpreter=True)


def _in_one_process(facts: Facts, points: _Points) -> Iterator[Interruption]:
    inline = {"num_workers": 0}
    point = points.random()
    steps = points.steps_after(point)
    legs = Leg(options=inline, steps=steps), Leg()
    again = f"and once more {steps} batch{'es' if steps > 1 else ''} later"
    yield Interruption(name=f"{_after(point)}, {again}", start=point, legs=legs)
    point = points.random()
    # Many a defect shows only where a sample is made for the second time.
    back = Leg(options=inline, steps=_SOME_STEPS, twice=True)
    name = f"{_after(point)}, and back there in the same process"
    yield Interruption(name=name, start=point, legs=(back,))
    if not facts.has_lanes:
        point = points.random()
        second = Leg(options=inline, worker=(1, 2))
        name = f"{_after(point)}, all of it in the second of 2 workers"
        yield Interruption(name=name, start=point, legs=(second,))


class _Points:
    """Where runs are interrupted: chosen ones in turn, and random ones."""

    def __init__(self, epochs: Sequence[int], count: int, chance: random.Random) -> None:
        self._total = len(epochs)
        self._first_epoch = epochs.count(epochs[0])
        self._chance = chance
        ends = [at for at in range(1, self._total) if epochs[at] != epochs[at - 1]]
        chosen = [1, *ends, self._total - 1]
        self.each = list(dict.fromkeys(at for at in chosen if 0 < at < self._total))
        self.each += [self.random() for _ in range(count)]

    def random(self) -> int:
        return self._chance.randrange(1, self._total) if self._total > 1 else 0

    def steps_after(self, point: int) -> int:
        """Some steps, with others after them if there are two."""
        return max(min(_SOME_STEPS, (self._total - point) // 2), 1)

    def in_first_epoch(self) -> int:
        return self._chance.randrange(1, self._first_epoch) if self._first_epoch > 1 else 0


def _after(batches: int) -> str:
    if batches == 0:
        return "before the first batch"
    return f"after {batches} batch{'es' if batches > 1 else ''}"


def _with_workers(
    facts: Facts, points: _Points, counts: Sequence[int] | None
) -> Iterator[Interruption]:
    if counts is None:
        counts = [*sorted({0, 1, 2, 3} - {facts.num_workers}), facts.num_workers]
    if not counts or not points.each:
        return
    for turn in range(max(len(counts), len(points.each))):
        point, count = points.each[turn % len(points.each)], counts[turn % len(counts)]
        workers = f"{count} worker{'' if count == 1 else 's'}"
        leg = Leg(options={"num_workers": count})
        yield Interruption(name=f"{_after(point)}, with {workers}", start=point, legs=(leg,))


def _with_kills(facts: Facts, points: _Points) -> Iterator[Interruption | Left]:
    if facts.in_threads:
        yield Left(name="killed workers", reason="engine='threads' has no worker processes")
        return
    options = {"num_workers": max(facts.num_workers, 2), "max_restarts": 3}
    point = points.in_first_epoch()
    yield Interruption(
        name=f"{_after(point)}, with {options['num_workers']} workers that are killed meanwhile",
        start=point,
        legs=(Leg(options=options, kills=(0, 1)),),
    )


def _with_batch_sizes(
    facts: Facts, points: _Points, sizes: Sequence[int] | None
) -> Iterator[Interruption | Left]:
    why_not = _why_batches_stay(facts)
    if why_not:
        yield Left(name="other batch sizes", reason=why_not)
        return
    own = facts.batch_size or 1
    if sizes is None:
        sizes = sorted({2 * own, max(own // 2, 1), own + 1} - {own})
    for size in sizes:
        if size == own:
            yield Left(name=f"batches of {size}", reason="that is the loader's own batch size")
            continue
        point = points.in_first_epoch()
        yield Interruption(
            name=f"{_after(point)}, with batches of {size}",
            start=point,
            legs=(Leg(options={"batch_size": size}),),
            by_sample=True,
        )


def _with_world_sizes(
    facts: Facts, points: _Points, sizes: Sequence[int] | None
) -> Iterator[Interruption | Left]:
    why_not = _why_batches_stay(facts)
    if facts.shares_nothing and not why_not:
        why_not = "strategy='simple' shares nothing among ranks"
    if why_not:
        yield Left(name="other numbers of ranks", reason=why_not)
        return
    inline = {"num_workers": 0}  # workers of several ranks would only take time
    for size in (2, 3) if sizes is None else sizes:
        point = points.in_first_epoch()
        ranks = "1 rank" if size == 1 else f"{size} ranks, then on 1"
        some = Leg(options=inline, world_size=size, steps=_SOME_STEPS)
        yield Interruption(
            name=f"{_after(point)}, on {ranks}",
            start=point,
            legs=(Leg(options=inline),) if size == 1 else (some, Leg(options=inline)),
            by_sample=True,
        )


def _why_batches_stay(facts: Facts) -> str | None:
    """Why batches cannot be made of other samples than they are; None where they can."""
    if facts.is_iterable:
        return "an IterableDataset makes its batches lane by lane"
    if facts.has_lanes:
        return "a dataset with a state of its own is read lane by lane"
    if facts.has_sampler:
        return "the loader is given a sampler, which decides that itself"
    if facts.skips_errors:
        return "on_error='skip' leaves samples out, so batches do not say which those are"
    if facts.batch_size is None:
        return "batch_size=None delivers single samples"
    return None
