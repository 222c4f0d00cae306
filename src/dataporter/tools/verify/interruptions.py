"""The plan of a verification: where a loader is interrupted, and what differs afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dataporter.layout import counted
from dataporter.tools.verify.facts import LoaderFacts
from dataporter.tools.verify.report import Check
from dataporter.tools.verify.runs import Treatment

_SOME_STEPS = 3  # between two interruptions
_INLINE = {"num_workers": 0}

# Kinds of checks, as reports name them.
_INTERPRETERS = "new interpreters"
_TIME = "another time"
_WORKERS = "numbers of workers"
_KILLED = "killed workers"
_ONE_PROCESS = "resumes in one process"
_SIZES = "other batch sizes"
_RANKS = "other numbers of ranks"
_WORKER_SEED = 1_000_003  # unlike any that a dataset uses outside of workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg(Treatment):
    """A run from one interruption to the next, on every rank."""

    world_size: int = 1
    steps: int | None = None  # None: to the end of the comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """A resume after `start` batches of the uninterrupted run, in new processes."""

    name: str
    kind: str
    start: int
    legs: tuple[Leg, ...] = (Leg(),)
    interpreter: int = 0  # 0: the one of the uninterrupted run
    at_another_time: bool = False
    by_sample: bool = False  # compare samples, since batches consist of other ones


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeValues:
    """Values to resume with; None for some that suit the loader."""

    workers: Sequence[int] | None = None
    batch_sizes: Sequence[int] | None = None
    world_sizes: Sequence[int] | None = None
    points: int = 3  # random ones


def plan_interruptions(
    facts: LoaderFacts,
    epochs: Sequence[int],
    values: ResumeValues,
    chance: random.Random,
    *,
    why_not_importable: str,
    why_clock_must_run: str,
) -> Iterator[Interruption | Check]:
    """Plan interruptions of a run whose batches belong to `epochs`, the most telling first.

    An interruption that is impossible for this loader is a check that is skipped.
    """
    points = _Points(epochs, values.points, chance)
    # New interpreters take seconds to start, so checks that need none come in between.
    if why_not_importable:
        reason = f"another process cannot import this factory: {why_not_importable}"
        yield _skipped("a new interpreter", reason)
    else:
        name = "the same run in a new interpreter"
        yield Interruption(name=name, kind=_INTERPRETERS, start=0, interpreter=1)
    name = "the same run at another time"
    if why_clock_must_run:
        yield _skipped(name, why_clock_must_run)
    else:  # in one process, since spawned workers have a clock of their own
        inline = (Leg(options=_INLINE),)
        yield Interruption(name=name, kind=_TIME, start=0, legs=inline, at_another_time=True)
    yield from _with_workers(facts, points, values.workers)
    yield from _with_killed_workers(facts, points)
    if not why_not_importable:
        name = f"{_after(1)}, in a new interpreter"
        yield Interruption(name=name, kind=_INTERPRETERS, start=1, interpreter=2)
    yield from _in_one_process(facts, points)
    yield from _with_batch_sizes(facts, points, values.batch_sizes)
    yield from _with_world_sizes(facts, points, values.world_sizes)
    if not why_not_importable:
        name = "the same run in one more interpreter"
        yield Interruption(name=name, kind=_INTERPRETERS, start=0, interpreter=3)


class _Points:
    """Batches after which runs are interrupted: chosen ones in turn, and random ones."""

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

    def in_first_epoch(self) -> int:
        return self._chance.randrange(1, self._first_epoch) if self._first_epoch > 1 else 0

    def steps_after(self, point: int) -> int:
        """Return a few steps, which leave others after them if there are two."""
        return max(min(_SOME_STEPS, (self._total - point) // 2), 1)


def _skipped(name: str, reason: str) -> Check:
    return Check(name=name, outcome="skipped", words=reason)


def _after(batches: int) -> str:
    return "before the first batch" if batches == 0 else f"after {counted(batches, 'batch')}"


def _with_workers(
    facts: LoaderFacts, points: _Points, counts: Sequence[int] | None
) -> Iterator[Interruption]:
    if counts is None:
        counts = [*sorted({0, 1, 2, 3} - {facts.num_workers}), facts.num_workers]
    if not counts or not points.each:
        return
    for turn in range(max(len(counts), len(points.each))):
        point, count = points.each[turn % len(points.each)], counts[turn % len(counts)]
        yield Interruption(
            name=f"{_after(point)}, with {counted(count, 'worker')}",
            kind=_WORKERS,
            start=point,
            legs=(Leg(options={"num_workers": count}),),
        )


def _with_killed_workers(facts: LoaderFacts, points: _Points) -> Iterator[Interruption | Check]:
    if facts.in_threads:
        yield _skipped(_KILLED, "engine='threads' has no worker processes")
        return
    workers, point = max(facts.num_workers, 2), points.in_first_epoch()
    yield Interruption(
        name=f"{_after(point)}, with {workers} workers that are killed meanwhile",
        kind=_KILLED,
        start=point,
        legs=(Leg(options={"num_workers": workers, "max_restarts": 3}, kills=(0, 1)),),
    )


def _in_one_process(facts: LoaderFacts, points: _Points) -> Iterator[Interruption]:
    def resume(point: int, what: str, *legs: Leg) -> Interruption:
        name = f"{_after(point)}, {what}"
        return Interruption(name=name, kind=_ONE_PROCESS, start=point, legs=legs)

    point = points.random()
    steps = points.steps_after(point)
    once_more = Leg(options=_INLINE, steps=steps), Leg()
    yield resume(point, f"and once more {counted(steps, 'batch')} later", *once_more)
    # Many a defect shows only when a sample is fetched for the second time.
    back = Leg(options=_INLINE, steps=_SOME_STEPS, twice=True)
    yield resume(points.random(), "and back there in the same process", back)
    if not facts.has_lanes:
        second = Leg(options=_INLINE, worker=(1, 2, _WORKER_SEED))
        yield resume(points.random(), "all of it in the second of 2 workers", second)
    # A cache of augmented samples shows only where a sample comes again, in another epoch.
    if facts.knows_indices:
        again = Leg(options=_INLINE, steps=_SOME_STEPS, fetched_before=True)
        yield resume(points.random(), "with samples that were fetched before", again)


def _with_batch_sizes(
    facts: LoaderFacts, points: _Points, sizes: Sequence[int] | None
) -> Iterator[Interruption | Check]:
    if facts.why_batches_are_fixed:
        yield _skipped(_SIZES, facts.why_batches_are_fixed)
        return
    own = facts.batch_size or 1
    if sizes is None:
        sizes = sorted({2 * own, max(own // 2, 1), own + 1} - {own})
    for size in sizes:
        if size == own:
            yield _skipped(f"batches of {size}", "that is the loader's own batch size")
            continue
        point = points.in_first_epoch()
        yield Interruption(
            name=f"{_after(point)}, with batches of {size}",
            kind=_SIZES,
            start=point,
            legs=(Leg(options={"batch_size": size}),),
            by_sample=True,
        )


def _with_world_sizes(
    facts: LoaderFacts, points: _Points, sizes: Sequence[int] | None
) -> Iterator[Interruption | Check]:
    reason = facts.why_batches_are_fixed
    if facts.shares_nothing and not reason:
        reason = "strategy='simple' shares nothing among ranks"
    if reason:
        yield _skipped(_RANKS, reason)
        return
    for size in (2, 3) if sizes is None else sizes:
        point = points.in_first_epoch()
        last = Leg(options=_INLINE)  # workers of several ranks would only take time
        some = Leg(options=_INLINE, world_size=size, steps=_SOME_STEPS)
        yield Interruption(
            name=f"{_after(point)}, on {'1 rank' if size == 1 else f'{size} ranks, then on 1'}",
            kind=_RANKS,
            start=point,
            legs=(last,) if size == 1 else (some, last),
            by_sample=True,
        )
