"""`verify`: an uninterrupted run, many interrupted ones, and the reason why they differ."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from dataporter.arguments import check_int, check_number
from dataporter.errors import FactoryError, NotExactError
from dataporter.tools.sandbox import USUAL, Conditions, ProcessEndedError, Sandbox, TimeUpError
from dataporter.tools.sandbox.conditions import why_clock_must_run
from dataporter.tools.sandbox.factories import Factory
from dataporter.tools.verify.causes import cause_of_problem, find_cause
from dataporter.tools.verify.interruptions import (
    ImpossibleError,
    Interruption,
    NotRunError,
    ResumeValues,
    Samples,
    Trial,
    plan_interruptions,
    samples_of,
)
from dataporter.tools.verify.other_loaders import describe, find_losses
from dataporter.tools.verify.report import TIME_UP, Cause, Check, Present, Report
from dataporter.tools.verify.runs import Run, RunResult, run_in, run_uninterrupted

_SEARCHED_BATCHES = 4  # in which a cause is looked for
_FEWEST = 2  # batches: one before an interruption, one after it

# Reasons why a check was not run.
_KILLED = "a process of the verification was killed"
_SPARED = "the workers had ended before they could be killed"
_NOTHING_LEFT = "no batch was left for it"


def _ignore(*_: Any) -> None:
    """Do nothing, in place of a callback that is not given."""


def assert_resumes_exactly(make_loader: Factory | str, **options: Any) -> Report:
    """Raise `NotExactError`, an AssertionError, unless a loader resumes exactly.

    For tests. `options` are those of `verify`. The report is returned, or is the error's message.
    A verification whose time was up before all checks were run is INCOMPLETE, and raises too.

    >>> from dataporter import ResumableDataLoader
    >>> def make_loader():
    ...     return ResumableDataLoader(range(64), batch_size=4, shuffle=True, seed=1)
    >>> assert_resumes_exactly(make_loader, batches=4).is_exact
    True
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    report = verify(make_loader, **options)
    if not report.is_exact:
        msg = f"\n{report}"
        raise NotExactError(msg)
    return report


def verify(
    make_loader: Factory | str,
    *,
    batches: int = 32,
    seconds: float = 120,
    seed: int = 0,
    workers: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    world_sizes: Sequence[int] | None = None,
    points: int = 3,
    fail_fast: bool = False,
    on_start: Callable[[Report | Present], None] | None = None,
    on_check: Callable[[Check], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    shows_output: bool = False,
) -> Report:
    """Interrupt a loader in many ways, and compare the rest with an uninterrupted run.

    `make_loader` makes a new loader at each call: a function without arguments,
    "package.module:function", or "path/to/file.py:function". It is called in other processes only.
    Other worker counts, batch sizes and numbers of ranks replace its own on their way into the
    constructor of `ResumableDataLoader`. The report names checks that are impossible for this
    loader, and why.

    It may also make a DataModule, whose training loader counts, or a DataLoader of torch or
    another library. Such a loader is interrupted as it is first, then it is built again as a
    `ResumableDataLoader` with the same arguments, and verified. A DataModule or such a loader can
    also be given itself.

    Environment variables, files and the machine are the same in all runs. If samples depend on
    these, verify does not notice.

    The uninterrupted run has `batches` batches, at most two epochs. All runs together take at most
    about `seconds`; checks after that are not run, and the report is incomplete. `points` of the
    interruptions are random, by `seed`. With `fail_fast`, the first difference ends the
    verification. `on_start` is called with a description of the loader, `on_check` with each
    outcome at once, `on_progress` with the number of checks that are done and of all. Prints of the
    user's code are dropped, unless `shows_output`.

    Two kinds of checks need the `cli` extra: the run at another time, and the search for the clock
    as a cause. Without it, they are skipped.
    """
    check_int("batches", batches, least=_FEWEST)
    check_number("seconds", seconds, above=0)
    check_int("points", points, least=0)
    values = ResumeValues(
        workers=_checked("workers", workers, 0),
        batch_sizes=_checked("batch_sizes", batch_sizes, 1),
        world_sizes=_checked("world_sizes", world_sizes, 1),
        points=points,
    )
    on_start, on_check, on_progress = (
        on_start or _ignore,
        on_check or _ignore,
        on_progress or _ignore,
    )
    began = monotonic()
    sandbox = Sandbox(make_loader, Run, seconds=seconds, shows_output=shows_output, interpreters=2)
    with contextlib.closing(sandbox):
        verification = _Verification(sandbox, batches, seconds)
        if verification.is_rebuilt:
            for present in verification.find_losses(values.workers):
                if present.checks:
                    on_check(present.checks[-1])
                else:
                    on_start(present)
        on_start(verification.report())
        checks: list[Check] = []
        plan = verification.plan(values, random.Random(seed))
        for planned in plan:
            on_progress(len(checks), len(plan))
            checks.append(check := verification.check(planned))
            on_check(check)
            if fail_fast and check.outcome == "differs":
                break
    if not verification.has_compared:
        fewer = f", or fewer than {batches} batches" if batches > _FEWEST else ""
        msg = (
            f"no resume could be compared within {seconds:g} seconds, so nothing is known. Give "
            f"more seconds{fewer}."
        )
        raise FactoryError(msg)
    elapsed = round(monotonic() - began, 3)
    return replace(verification.report(), checks=tuple(checks), seconds=elapsed)


def _checked(name: str, values: Sequence[int] | None, least: int) -> Sequence[int] | None:
    for value in values or ():
        check_int(name, value, least=least)
    return values


class _Verification:
    def __init__(self, sandbox: Sandbox, batches: int, seconds: float) -> None:
        self._sandbox = sandbox
        self._reference = run_uninterrupted(sandbox, batches, seconds)
        self._known_samples: Samples | None = None
        self._cause: Cause | None = None
        self._checks_left = 0
        self._present: Present | None = None
        self._batches = batches
        self._seconds = seconds
        self.is_rebuilt = self._reference.facts.is_rebuilt
        self.has_compared = False  # a resume, or found a difference

    def find_losses(self, workers: Sequence[int] | None) -> Iterator[Present]:
        """Interrupt the loader that was rebuilt, as it is; yield what is known after each check."""
        loader = describe(self._sandbox)
        if loader is None:
            return
        self._present = Present(loader=str(loader))
        yield self._present
        for check in find_losses(self._sandbox, loader, self._batches, workers):
            self._present = replace(self._present, checks=(*self._present.checks, check))
            yield self._present

    def plan(self, values: ResumeValues, chance: random.Random) -> list[Interruption | Check]:
        """List the checks."""
        found = list(
            plan_interruptions(
                self._reference.facts,
                self._reference.epochs,
                values,
                chance,
                why_not_importable=self._sandbox.why_not_importable,
                why_clock_must_run=why_clock_must_run(),
            )
        )
        self._checks_left = len(found)
        return found

    def check(self, planned: Interruption | Check) -> Check:
        """Try one interruption, unless it is skipped."""
        self._checks_left -= 1
        if isinstance(planned, Check):
            return planned
        try:
            check = self._try(planned)
        except ImpossibleError as error:
            check = Check(name=planned.name, outcome="skipped", words=str(error))
        except (NotRunError, TimeUpError, ProcessEndedError) as error:
            why = {TimeUpError: TIME_UP, ProcessEndedError: _KILLED}.get(type(error), str(error))
            check = Check(name=planned.name, outcome="not run", words=why)
        is_resume = check.outcome == "exact" and planned.start > 0
        self.has_compared |= check.outcome == "differs" or is_resume
        return replace(check, kind=planned.kind)

    def _try(self, planned: Interruption) -> Check:
        if self._sandbox.seconds_left <= 0:
            raise NotRunError(TIME_UP)
        if planned.interpreter:
            self._sandbox.prepare(planned.interpreter + 1)
        trial = Trial(self._reference, planned, self._run, self._samples)
        try:
            message = trial.difference()
        except (FactoryError, ImpossibleError) as error:
            if self._sandbox.seconds_left <= 0:
                raise NotRunError(TIME_UP) from None
            if isinstance(error, ImpossibleError):
                raise
            return Check(name=planned.name, outcome="differs", words=str(error))
        if message is not None:
            self._cause = self._cause or self._find_cause(planned, trial)
            return Check(name=planned.name, outcome="differs", words=message)
        if not trial.compared:
            raise NotRunError(TIME_UP) if trial.out_of_time else ImpossibleError(_NOTHING_LEFT)
        if trial.spared_workers:
            raise NotRunError(_SPARED)
        return Check(name=planned.name, outcome="exact", batches=trial.compared)

    def _find_cause(self, planned: Interruption, trial: Trial) -> Cause:
        if trial.problem is not None and trial.problem.mismatched:
            return cause_of_problem(trial.problem)
        facts, batches = self._reference.facts, self._reference.batches
        at = min(planned.start + trial.compared, len(batches) - 1)
        return find_cause(
            self._sandbox,
            facts,
            self._reference.states[at],
            len(batches) if facts.has_lanes else min(len(batches) - at, _SEARCHED_BATCHES),
            interpreter=planned.interpreter or 1,
        )

    def _run(self, run: Run, conditions: Conditions = USUAL) -> RunResult:
        """Run the loader once, within its share of the time that is left."""
        share = self._sandbox.seconds_left / (self._checks_left + 1)
        return run_in(self._sandbox, replace(run, seconds=share), conditions)[1]

    def _samples(self) -> Samples:
        """Return the samples of the first epoch, by position, as a single rank reads them."""
        if self._known_samples is None:
            epochs = self._reference.epochs
            run = Run(
                options={"rank": 0, "world_size": 1},
                state=self._reference.states[0],
                batches=epochs.count(epochs[0]) * self._reference.facts.world_size,
                by_sample=True,
                passes=1,
            )
            result = self._run(run)
            if result.problem is not None:
                msg = f"a single rank cannot read all samples: {result.problem.message}"
                raise NotRunError(msg)
            self._known_samples = samples_of(result.delivered)
        return self._known_samples

    def report(self) -> Report:
        """Return the report without its checks."""
        reference = self._reference
        return Report(
            loader=str(reference.facts),
            reference=str(reference),
            checks=(),
            cause=self._cause,
            time_limit=self._seconds,
            present=self._present,
        )
