"""`verify`: an uninterrupted run, many interrupted ones, and what tells them apart."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from dataporter.arguments import check_int, check_number
from dataporter.errors import FactoryError, NotExactError, add_note
from dataporter.tools.verify.causes import cause_of_problem, find_cause
from dataporter.tools.verify.checks import Interruption, Left, Leg, Variety, interruptions
from dataporter.tools.verify.comparing import Samples, samples_of, unequal_batches, unequal_samples
from dataporter.tools.verify.laboratory import HERE, Laboratory, Where
from dataporter.tools.verify.playing import Delivered, Play, Played, Problem
from dataporter.tools.verify.processes import ProcessEndedError, TimeUpError
from dataporter.tools.verify.remaking import Facts
from dataporter.tools.verify.report import Cause, Check, Report

_REFERENCE_SHARE = 0.3  # of the seconds, that the uninterrupted run may take
_SEARCHED_BATCHES = 4  # in which a cause is looked for
_PASSES = 2  # that are gone over at most
_FEWEST = 2  # batches: one before an interruption, one after it

# Why a check tells nothing.
_TIME_UP = "the time was up"
_KILLED = "a process of the verification was killed"
_SPARED = "the workers had ended before they could be killed"
_NOTHING_LEFT = "no batch was left for it"


def assert_resumes_exactly(make_loader: Callable[[], Any] | str, **options: Any) -> Report:
    """Raise `NotExactError`, an AssertionError, unless a loader resumes exactly.

    For tests. `options` are those of `verify`, whose report is returned, or is the
    error's message.

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
    make_loader: Callable[[], Any] | str,
    *,
    batches: int = 32,
    seconds: float = 120,
    seed: int = 0,
    workers: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    world_sizes: Sequence[int] | None = None,
    points: int = 3,
    fail_fast: bool = False,
    on_start: Callable[[Report], None] | None = None,
    on_check: Callable[[Check], None] | None = None,
    shows_output: bool = False,
) -> Report:
    """Interrupt a loader in many ways, and compare what follows with an uninterrupted run.

    `make_loader` makes a new loader at each call: a function, or "package.module:function". It
    is called in other processes only, and takes no arguments: other worker counts, batch sizes
    and numbers of ranks are put in the place of its own on their way into the constructor of
    `ResumableDataLoader`. What cannot be varied is left out, and the report says why.

    Environment variables, files and the machine are the same in all runs: what samples take from
    these is not found.

    The uninterrupted run is of `batches` batches, two epochs at most. `seconds` bound all of
    it: what there is no time for is not run. `points` of the interruptions are random, by
    `seed`. With `fail_fast`, nothing is run after the first difference. `on_start` is told what
    is verified, `on_check` each outcome at once. What the user's code prints is dropped, unless
    `shows_output`.
    """
    _check_options(batches, seconds, points)
    variety = Variety(
        workers=_checked("workers", workers, 0),
        batch_sizes=_checked("batch_sizes", batch_sizes, 1),
        world_sizes=_checked("world_sizes", world_sizes, 1),
        points=points,
    )
    began = monotonic()
    laboratory = Laboratory(make_loader, seconds=seconds, shows_output=shows_output)
    with contextlib.closing(laboratory):
        verification = _Verification(laboratory, batches, seconds)
        if on_start is not None:
            on_start(verification.report())
        chance = random.Random(seed)
        checks = []
        for planned in verification.planned(variety, chance):
            checks.append(check := verification.check(planned))
            if on_check is not None:
                on_check(check)
            if fail_fast and check.outcome == "differs":
                break
    if not verification.has_told:
        fewer = f", or fewer than {batches} batches" if batches > _FEWEST else ""
        msg = (
            f"no resume could be compared within {seconds:g} seconds, so nothing is known. Give "
            f"more seconds{fewer}."
        )
        raise FactoryError(msg)
    return replace(
        verification.report(), checks=tuple(checks), seconds=round(monotonic() - began, 3)
    )


def _check_options(batches: int, seconds: float, points: int) -> None:
    check_int("batches", batches, least=_FEWEST)
    check_number("seconds", seconds, above=0)
    check_int("points", points, least=0)


def _checked(name: str, values: Sequence[int] | None, least: int) -> Sequence[int] | None:
    for value in values or ():
        check_int(name, value, least=least)
    return values


class _Verification:
    def __init__(self, laboratory: Laboratory, batches: int, seconds: float) -> None:
        self._laboratory = laboratory
        self._seconds = seconds
        self._facts, self._reference = self._uninterrupted(batches)
        self._samples: Samples | None = None
        self._cause: Cause | None = None
        self._checks_left = 0
        self.has_told = False  # of a difference, or of a resume without one

    def _uninterrupted(self, batches: int) -> tuple[Facts, Played]:
        request = Play(batches=batches, seconds=self._seconds * _REFERENCE_SHARE, passes=_PASSES)
        try:
            facts, played = self._laboratory.play(request)
        except TimeUpError:
            msg = (
                f"the loader has delivered too little after {self._seconds:g} seconds. Find out "
                "what it waits for, or give it more time."
            )
            raise FactoryError(msg) from None
        except ProcessEndedError:
            msg = "a process of the verification ended by itself, or was killed. Verify again."
            raise FactoryError(msg) from None
        if played.problem is not None:
            error = FactoryError(f"the loader failed: {played.problem.words}")
            add_note(error, played.problem.traceback)
            raise error
        if not played.delivered:
            msg = f"the loader over {facts.dataset} delivered no batch. Give it some data."
            raise FactoryError(msg)
        if len(played.delivered) == 1:
            msg = (
                f"the loader over {facts.dataset} delivered a single batch"
                f"{' before its time was up' if played.out_of_time else ''}, so there is no resume "
                "to compare. Give it more data, smaller batches or more seconds."
            )
            raise FactoryError(msg)
        return facts, played

    def planned(self, variety: Variety, chance: random.Random) -> list[Interruption | Left]:
        """What the loader is put through."""
        epochs = [batch.epoch for batch in self._reference.delivered]
        why_not = self._laboratory.why_not_importable
        plan = interruptions(self._facts, epochs, variety, chance, why_not_importable=why_not)
        found = list(plan)
        self._checks_left = len(found)
        return found

    def check(self, planned: Interruption | Left) -> Check:
        """Try one interruption, or say why not."""
        self._checks_left -= 1
        if isinstance(planned, Left):
            return Check(name=planned.name, outcome="skipped", words=planned.reason)
        try:
            check = self._tried(planned)
        except _UnrunError as error:
            return Check(name=planned.name, outcome="not run", words=str(error))
        self.has_told |= check.outcome == "differs" or planned.start > 0
        return check

    def _tried(self, planned: Interruption) -> Check:
        if self._laboratory.seconds_left <= 0:
            raise _UnrunError(_TIME_UP)
        if planned.in_new_interpreter:
            self._laboratory.take_another_interpreter()
        trial = _Trial(self, planned)
        try:
            words = trial.difference()
        except TimeUpError:
            raise _UnrunError(_TIME_UP) from None
        except ProcessEndedError:
            raise _UnrunError(_KILLED) from None
        except FactoryError as error:
            if self._laboratory.seconds_left <= 0:
                raise _UnrunError(_TIME_UP) from None
            return Check(name=planned.name, outcome="differs", words=str(error))
        if words is not None:
            self._cause = self._cause or self._find_cause(planned, trial)
            return Check(name=planned.name, outcome="differs", words=words)
        if not trial.compared:
            raise _UnrunError(_TIME_UP if trial.out_of_time else _NOTHING_LEFT)
        if trial.spared_workers:
            raise _UnrunError(_SPARED)
        return Check(name=planned.name, outcome="exact", batches=trial.compared)

    def _find_cause(self, planned: Interruption, trial: _Trial) -> Cause:
        if trial.problem is not None:
            known = cause_of_problem(trial.problem)
            if known is not None:
                return known
        at = min(planned.start + trial.compared, len(self._reference.delivered) - 1)
        left = len(self._reference.delivered) - at
        return find_cause(
            self._laboratory,
            self._facts,
            self._reference.states[at],
            len(self.batches) if self._facts.has_lanes else min(left, _SEARCHED_BATCHES),
        )

    def play(self, request: Play, where: Where) -> Played:
        """Run the loader once, in its share of the time that is left."""
        share = self._laboratory.seconds_left / (self._checks_left + 1)
        return self._laboratory.play(replace(request, seconds=share), where)[1]

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def batches(self) -> list[Delivered]:
        """Those of the uninterrupted run."""
        return self._reference.delivered

    @property
    def states(self) -> list[bytes]:
        """Before each of those, and after the last."""
        return self._reference.states

    def samples(self) -> Samples:
        """Those of the first epoch, by position, on one rank."""
        if self._samples is None:
            first = [batch for batch in self.batches if batch.epoch == self.batches[0].epoch]
            request = Play(
                options={"rank": 0, "world_size": 1},
                state=self.states[0],
                batches=len(first) * self._facts.world_size,
                as_samples=True,
                passes=1,
            )
            played = self.play(request, HERE)
            if played.problem is not None:
                msg = f"its samples cannot be told apart on one rank: {played.problem.words}"
                raise _UnrunError(msg)
            self._samples = samples_of(played.delivered)
        return self._samples

    def report(self) -> Report:
        facts, run = self._facts, self._reference.delivered
        size = "single samples" if facts.batch_size is None else f"batches of {facts.batch_size}"
        if facts.has_sampler:
            size = "a sampler of its own"
        parts = [
            f"{facts.loader} over {facts.dataset}",
            "" if facts.samples is None else f"{facts.samples:,} samples",
            f"{size}, shuffled" if facts.shuffle else size,
            f"{facts.num_workers} worker{'' if facts.num_workers == 1 else 's'}",
        ]
        epochs = sorted({batch.epoch for batch in run})
        of = "" if facts.batches is None else f" of {facts.batches:,} a pass"
        which = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
        return Report(
            loader=", ".join(part for part in parts if part),
            reference=f"Compared with an uninterrupted run: {len(run)} batches{of}, {which}",
            checks=(),
            cause=self._cause,
        )


class _UnrunError(Exception):
    """A check tells nothing, and why."""


class _Trial:
    """One interruption, tried."""

    def __init__(self, verification: _Verification, planned: Interruption) -> None:
        self._verification = verification
        self._planned = planned
        self.compared = 0  # batches that were equal
        self.problem: Problem | None = None
        self.spared_workers = False  # that were to be killed
        self.out_of_time = False
        facts = verification.facts
        self._position = planned.start * facts.world_size * (facts.batch_size or 1)

    def difference(self) -> str | None:
        """Say what differs first; None for nothing."""
        run, planned = self._verification, self._planned
        state, done = run.states[planned.start], planned.start
        for leg in planned.legs:
            first: Played | None = None
            for rank in range(leg.world_size):
                request = self._request(leg, rank, state, done)
                played = self._played(request)
                self.spared_workers = bool(leg.kills) and not played.killed
                self.out_of_time |= played.out_of_time
                words = self._unequal(request, played, done)
                if words is not None:
                    return words
                first = first or played
            if first is None or first.out_of_time or leg.twice:
                return None
            state, done = first.states[-1], done + len(first.delivered)
            self._position += leg.world_size * len(first.delivered) * self._size(leg)
        return None

    def _size(self, leg: Leg) -> int:
        """How many samples a leg has in a batch."""
        return leg.options.get("batch_size", self._verification.facts.batch_size) or 1

    def _request(self, leg: Leg, rank: int, state: bytes, done: int) -> Play:
        run = self._verification
        request = Play(
            options=leg.options,
            state=state,
            batches=min(leg.steps or len(run.batches), len(run.batches) - done),
            kills=leg.kills,
            twice=leg.twice,
            worker=leg.worker,
        )
        if not self._planned.by_sample:
            return request
        left = len(run.samples()) - self._position
        steps = max(-(-left // (self._size(leg) * leg.world_size)), 0)
        return replace(
            request,
            options={**leg.options, "rank": rank, "world_size": leg.world_size},
            batches=min(leg.steps or steps, steps),
            as_samples=True,
            passes=1,
        )

    def _played(self, request: Play) -> Played:
        if request.batches == 0:
            return Played(states=[request.state or b""])
        if self._planned.at_another_time:
            return self._played_at_another_time(request)
        where = Where(1) if self._planned.in_new_interpreter else HERE
        return self._verification.play(request, where)

    def _played_at_another_time(self, request: Play) -> Played:
        """Run it at another time. What fails then, as what is signed does, is no difference."""
        try:
            played = self._verification.play(request, Where(0, "another time"))
        except FactoryError as error:
            msg = f"it fails then: {error}"
            raise _UnrunError(msg) from error
        if played.problem is not None and cause_of_problem(played.problem) is None:
            msg = f"it fails then: {played.problem.words}"
            raise _UnrunError(msg)
        return played

    def _unequal(self, request: Play, played: Played, done: int) -> str | None:
        found = played.delivered
        was_cut = played.out_of_time or played.problem is not None
        if request.as_samples:
            words = unequal_samples(self._verification.samples(), found)
            # The last batch may be dropped, or be another rank's.
            if words is None and not was_cut and len(found) < request.batches - 1:
                words = f"expected {request.batches} batches, found {len(found)}"
        else:
            count = (played.first or len(found)) if was_cut else request.batches
            once = self._verification.batches[done : done + count]
            expected = once * 2 if request.twice else once
            unequal = unequal_batches(expected[: len(found)] if was_cut else expected, found)
            words = None if unequal is None else unequal[1]
            if unequal is not None:
                self.compared += unequal[0] % len(once)
        if words is None and played.problem is not None:
            self.problem = played.problem
            words = played.problem.words
        if words is None:
            self.compared += len(found)
        return words
