"""One interruption, tried: the loader resumes leg by leg, and each leg is compared.

Runs are compared batch by batch or sample by sample, up to the first difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TypeAlias

from dataporter.errors import FactoryError
from dataporter.tools.sandbox import Conditions, Problem
from dataporter.tools.verify.batch_contents import Contents, Difference, difference
from dataporter.tools.verify.interruptions import Interruption, Leg
from dataporter.tools.verify.runs import Delivered, Reference, Run, RunResult, Treatment

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
