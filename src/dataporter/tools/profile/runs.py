"""`profile`: measure a loader in the sandbox, judge it, and tune it if asked to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from dataporter.arguments import check_int, check_number
from dataporter.errors import FactoryError
from dataporter.tools.profile.figures import Figures, figures_of
from dataporter.tools.profile.measuring import Measured, Measurement
from dataporter.tools.profile.report import Profile
from dataporter.tools.profile.tuning import RefusedError, Trial, search
from dataporter.tools.profile.verdict import judge
from dataporter.tools.sandbox import Sandbox
from dataporter.tools.sandbox.factories import Factory

_USED = 0.9  # share of the time that is left; the rest is for starting and ending
_SHARE_WITH_TUNING = 0.25  # of the seconds for the first measurement
_TRIALS = 8  # that share the time left
_LEAST_SECONDS = 1.0  # for a trial
_LONGEST_STEP = 3.6e6  # milliseconds


def profile(
    make_loader: Factory | str,
    *,
    batches: int = 200,
    seconds: float = 60,
    step_ms: float = 20,
    tune: bool = False,
    on_profile: Callable[[Profile], None] | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    shows_output: bool = False,
) -> Profile:
    """Measure where a loader's time goes, beside steps of `step_ms` milliseconds.

    `make_loader` makes a new loader at each call: a function without arguments,
    "package.module:function", or "path/to/file.py:function". It is called in another process. Up to
    `batches` batches are taken, in at most `seconds`. A step sleeps, as a process does while its
    device computes. With `tune`, other settings are tried in the time that is left. `on_profile` is
    called with the profile before that, `on_trial` with each trial, the present settings first,
    and `on_progress` with the number of measurements that are done and the most that there may be.
    Prints of the user's code are dropped, unless `shows_output`.

    >>> from dataporter import ResumableDataLoader
    >>> def make_loader():
    ...     return ResumableDataLoader(range(64), batch_size=4)
    >>> profile(make_loader, batches=8, step_ms=1).figures.batches
    8
    """
    check_int("batches", batches, least=1)
    check_number("seconds", seconds, above=0)
    check_number("step_ms", step_ms, below=_LONGEST_STEP)
    sandbox = Sandbox(make_loader, Measurement, seconds=seconds, shows_output=shows_output)
    with contextlib.closing(sandbox):
        runs = _Runs(sandbox, batches, seconds, step_ms / 1000)
        share = _SHARE_WITH_TUNING if tune else _USED
        measured = runs.measure({}, share * seconds, finds_slow=True)
        figures = figures_of(measured)
        verdict = judge(measured.subject, figures)
        found = Profile(measured=measured, figures=figures, verdict=verdict)
        if tune and not measured.subject.is_ours:
            msg = (
                f"{measured.subject.loader} cannot be tuned from outside. Use a "
                "dataporter.ResumableDataLoader, which takes the same arguments, or leave out "
                "--tune."
            )
            raise FactoryError(msg)
        if on_profile is not None:
            on_profile(found)
        if not tune:
            return found
        tuning = search(
            measured.subject,
            figures,
            runs.try_out,
            time_left=lambda: (sandbox.seconds_left - _LEAST_SECONDS) / seconds,
            on_trial=on_trial,
            on_progress=on_progress,
        )
        return replace(found, tuning=tuning)


class _Runs:
    """Measurements of one loader, until the time is up."""

    def __init__(self, sandbox: Sandbox, batches: int, seconds: float, step_seconds: float) -> None:
        self._sandbox = sandbox
        self._batches = batches
        self._seconds = seconds
        self._step_seconds = step_seconds

    def measure(
        self, options: dict[str, Any], seconds: float, *, finds_slow: bool = False
    ) -> Measured:
        measurement = Measurement(
            options=options,
            batches=self._batches,
            seconds=seconds,
            finds_slow=finds_slow,
            deadline=monotonic() + self._sandbox.seconds_left * _USED,
            step_seconds=self._step_seconds,
        )
        time_up = (
            f"the loader was still busy with a batch when its {self._seconds:g} seconds were up. "
            "Find out what it waits for, or give it more time."
        )
        found = self._sandbox.result(measurement, "the loader failed", time_up)
        if not found.steps:
            msg = f"the loader over {found.subject.dataset} delivered no batch. Give it some data."
            raise FactoryError(msg)
        return found

    def try_out(self, options: dict[str, Any]) -> Figures:
        seconds = self._sandbox.seconds_left / _TRIALS
        try:
            return figures_of(self.measure(options, max(seconds, _LEAST_SECONDS)))
        except FactoryError as error:
            raise RefusedError(str(error)) from error
