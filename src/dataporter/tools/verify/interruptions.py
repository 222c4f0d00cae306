"""Interruptions of a loader: planned, tried leg by leg, and compared with an uninterrupted run.

A plan says where a loader is interrupted, and what differs afterwards. Runs are compared batch by
batch or sample by sample, up to the first difference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from dataporter.errors import FactoryError
from dataporter.layout import counted
from dataporter.tools.sandbox import Conditions, Problem
from dataporter.tools.verify.batch_contents import Contents, Difference, difference
from dataporter.tools.verify.report import Check
from dataporter.tools.verify.runs import (
    Delivered,
    LoaderFacts,
    Reference,
    Run,
    RunResult,
    Treatment,
)

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


Samples: TypeAlias = Mapping[tuple[int, int], Contents]  # by epoch and position


class NotRunError(Exception):
    """A check whose outcome stays unknown; the message says why."""


class ImpossibleError(Exception):
    """A check that cannot be made of this loader; the message says why."""


class Trial:
    """One interruption of a reference run.

    `run` runs the loader once. `samples` returns those of the first epoch by position.
    """

    def __init__(
        self,
        reference: Reference,
        planned: Interruption,
        run: Callable[[Run, Conditions], RunResult],
        samples: Callable[[], Samples],
    ) -> None:
        self._reference = reference
        self._planned = planned
        self._run = run
        self._samples = samples
        self._position = planned.start * reference.facts.world_size * self._size(Leg())
        self.compared = 0  # batches that were equal
        self.problem: Problem | None = None
        self.spared_workers = False  # that should have been killed
        self.out_of_time = False

    def difference(self) -> str | None:
        """Return the first difference; None if all is equal."""
        state, done = self._reference.states[self._planned.start], self._planned.start
        for leg in self._planned.legs:
            first: RunResult | None = None
            for rank in range(leg.world_size):
                run = self._run_of(leg, rank, state, done)
                result = self._result(run)
                self.spared_workers = bool(leg.kills) and not result.killed
                self.out_of_time |= result.out_of_time
                message = self._compare(run, result, done)
                if message is not None:
                    return message
                first = first or result
            if first is None or first.out_of_time or leg.twice:
                return None
            state, done = first.states[-1], done + len(first.delivered)
            self._position += leg.world_size * len(first.delivered) * self._size(leg)
        return None

    def _size(self, leg: Leg) -> int:
        """Return the number of samples in a batch of a leg."""
        return leg.options.get("batch_size", self._reference.facts.batch_size) or 1

    def _run_of(self, leg: Leg, rank: int, state: bytes, done: int) -> Run:
        total = len(self._reference.batches)
        run = Run(
            **{each.name: getattr(leg, each.name) for each in fields(Treatment)},
            state=state,
            batches=min(leg.steps or total, total - done),
        )
        if not self._planned.by_sample:
            return run
        left = len(self._samples()) - self._position
        steps = max(-(-left // (self._size(leg) * leg.world_size)), 0)
        return replace(
            run,
            options={**leg.options, "rank": rank, "world_size": leg.world_size},
            batches=min(leg.steps or steps, steps),
            by_sample=True,
            passes=1,
        )

    def _result(self, run: Run) -> RunResult:
        if run.batches == 0:
            return RunResult(states=[run.state or b""])
        if not self._planned.at_another_time:
            return self._run(run, Conditions(interpreter=self._planned.interpreter))
        # Code that fails at another time, such as a request with a signature, is no difference.
        try:
            result = self._run(run, Conditions(clock="long ago"))
        except FactoryError as error:
            msg = f"it fails then: {error}"
            raise ImpossibleError(msg) from error
        if result.problem is not None and not result.problem.mismatched:
            msg = f"it fails then: {result.problem.message}"
            raise ImpossibleError(msg)
        return result

    def _compare(self, run: Run, result: RunResult, done: int) -> str | None:
        found = result.delivered
        was_cut = result.out_of_time or result.problem is not None
        if run.by_sample:
            message = first_unequal_sample(self._samples(), found)
            # The last batch may be dropped, or belong to another rank.
            if message is None and not was_cut and len(found) < run.batches - 1:
                message = f"expected {run.batches} batches, found {len(found)}"
        else:
            count = (result.first or len(found)) if was_cut else run.batches
            once = self._reference.batches[done : done + count]
            expected = once * 2 if run.twice else once
            unequal = first_unequal_batch(expected[: len(found)] if was_cut else expected, found)
            message = None
            if unequal is not None:
                equal, message = unequal
                self.compared += equal % len(once)
        if message is None and result.problem is not None:
            self.problem = result.problem
            message = result.problem.message
        if message is None:
            self.compared += len(found)
        return message


def first_unequal_batch(
    expected: Sequence[Delivered], found: Sequence[Delivered]
) -> tuple[int, str] | None:
    """Return how many batches are equal before the first that differs, and how that differs.

    None if all expected batches are there; more of them are no difference.
    """
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if (one.epoch, one.number) != (other.epoch, other.number):
            message = (
                f"expected batch {one.number} of epoch {one.epoch}, found batch {other.number} of "
                f"epoch {other.epoch}"
            )
            return number, message
        differing = difference(one.contents[0], other.contents[0])
        if differing is not None:
            return number, _described(one, differing, differing.sample)
    if len(found) < len(expected):
        missing = expected[len(found)]
        return len(found), f"expected batch {missing.number} of epoch {missing.epoch}, found none"
    return None


def first_unequal_sample(expected: Samples, found: Sequence[Delivered]) -> str | None:
    """Describe the first sample that differs from the one expected at its position."""
    for batch in found:
        positions = batch.positions or ()
        if len(positions) != len(batch.contents):
            return (
                f"epoch {batch.epoch}, batch {batch.number}: expected {len(positions)} samples, "
                f"found {len(batch.contents)}"
            )
        for number, (position, contents) in enumerate(zip(positions, batch.contents, strict=True)):
            known = expected.get((batch.epoch, position))
            differing = None if known is None else difference(known, contents)
            if differing is not None:
                return _described(batch, differing, number)
    return None


def samples_of(run: Sequence[Delivered]) -> Samples:
    """Return the samples of a run by epoch and position."""
    return {
        (batch.epoch, position): contents
        for batch in run
        for position, contents in zip(batch.positions or (), batch.contents, strict=True)
    }


def runs_differ(expected: Sequence[Delivered], found: Sequence[Delivered]) -> bool:
    """Tell whether two runs that should be equal differ anywhere."""
    return len(expected) != len(found) or any(
        difference(one, other) is not None
        for mine, its in zip(expected, found, strict=True)
        for one, other in zip(mine.contents, its.contents, strict=False)
    )


def _described(batch: Delivered, differing: Difference, sample: int | None) -> str:
    where = f"epoch {batch.epoch}, batch {batch.number}"
    if sample is not None:
        where += f", sample {sample}"
        if batch.positions is not None and batch.indices is not None:
            where += f" (position {batch.positions[sample]}, index {batch.indices[sample]})"
    if differing.path:
        where += f", at {differing.path}"
    return f"{where}: {differing.message}"
