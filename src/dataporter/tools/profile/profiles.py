"""`profile`: a loader measured in the sandbox, judged, tuned if asked to, and shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from dataporter.arguments import check_int, check_number
from dataporter.errors import FactoryError
from dataporter.fetch.timing import CONSUMER
from dataporter.tools import report
from dataporter.tools.profile import timeline
from dataporter.tools.profile.figures import (
    LACKS_CORES,
    Figures,
    Spread,
    Verdict,
    figures_of,
    judge,
)
from dataporter.tools.profile.measuring import Measured, Measurement
from dataporter.tools.profile.timeline import worker_name
from dataporter.tools.profile.tuning import Trial, Tuning, search
from dataporter.tools.sandbox import Sandbox
from dataporter.tools.sandbox.factories import Factory
from dataporter.tools.units import duration, percent, rate, size

_SHOWN_WORKERS = 16  # on a terminal
_MOST_READY = 8  # batches; more of them share a row

_MEANING = {
    "fetch": "reading samples from the dataset",
    "collate": "making a batch of samples",
    "convert": "changing dtypes",
    "state": "saving the lane's state",
    "write": "transport: copying the rest into shared memory",
    "pin": "transport: copying into page-locked memory",
    "take": "transport: reading from shared memory, by the consumer",
    "wait": "all waiting of the consumer",
}
_USED = 0.9  # share of the time that is left; the rest is for starting and ending
_SHARE_WITH_TUNING = 0.25  # of the seconds for the first measurement
_TRIALS = 8  # that share the time left
_LEAST_SECONDS = 1.0  # for a trial
_LONGEST_STEP = 3.6e6  # milliseconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile:
    """A measurement with its figures and verdict; `str(profile)` is meant to be read."""

    measured: Measured
    figures: Figures
    verdict: Verdict
    tuning: Tuning | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as builtins, for JSON, without records of single batches."""
        slowest = [{"index": index, "seconds": spent} for index, spent in self.figures.slowest]
        figures = {
            **asdict(self.figures),
            "bytes_per_second": self.figures.bytes_per_second,
            "samples_per_second": self.figures.samples_per_second,
            "slowest": slowest,
        }
        return {
            "loader": asdict(self.measured.subject),
            "step_ms": self.measured.step_seconds * 1000,
            "figures": figures,
            "verdict": asdict(self.verdict),
            "tuning": None if self.tuning is None else _tuning_as_dict(self.tuning),
        }

    def parts(self) -> list[report.Part]:
        """Return what the command shows before it tunes."""
        return [*self._about(), *self._tables(), *self._advice()]

    def __str__(self) -> str:
        return report.as_text([*self.parts(), *self._tuning()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return report.as_notebook([*self.parts(), *self._tuning()])

    def page(self) -> str:
        """Return the profile as one HTML file."""
        subject, figures = self.measured.subject, self.figures
        drawings = [
            timeline.timeline(self.measured),
            timeline.waits(self.measured, figures),
        ]
        parts = [*self._about(), *self._advice(), *drawings, *self._tables()]
        title = f"Profile of {subject.loader} over {subject.dataset}"
        return report.as_page("profile", title, [*parts, *self._tuning()])

    def _about(self) -> list[report.Part]:
        """Describe the loader and the measurement, and say the verdict."""
        figures, step = self.figures, self.measured.step_seconds
        steps = f"simulated steps of {duration(step)}" if step else "no steps between"
        samples = figures.samples_per_second
        rates = [
            f"{rate(figures.batches_per_second)} batches/s",
            "" if samples is None else f"{rate(samples)} samples/s",
            f"{size(figures.bytes_per_second)}/s" if figures.bytes_per_batch else "",
        ]
        measured = f"{figures.batches} batches in {duration(figures.seconds)}, {steps}: "
        lines = [str(self.measured.subject), measured + ", ".join(filter(None, rates))]
        style: report.Style = "good" if self.verdict.bound == "step" else "bad"
        return [
            report.Words(lines),
            report.Headline(self.verdict.words, style),
            report.Words(self._notes()),
        ]

    def _notes(self) -> list[str]:
        """List warnings about the figures."""
        queued, subject = self.figures.queued or 0.0, self.measured.subject
        notes = []
        if queued > LACKS_CORES:
            notes.append(
                f"Workers spent {percent(queued)} of their time waiting for a CPU core: other "
                f"processes were busy, or there are more workers than the {subject.cores} cores. "
                "On an idle machine the loader is faster."
            )
        if subject.slow_generators:
            notes.append(subject.slow_generators)
        if not subject.is_ours:
            notes.append(
                f"Of {subject.loader} only waits and steps are visible. Use a "
                "dataporter.ResumableDataLoader to see what its workers do."
            )
        return notes

    def _tables(self) -> Iterator[report.Part]:
        """Yield the times by stage and by worker, the batches that were ready, slow samples."""
        figures = self.figures
        stages = dict(figures.stages)
        if figures.take is not None:
            stages["take"] = figures.take
        stages["wait"] = figures.wait
        times = [(name, *_times(spread), _MEANING[name]) for name, spread in stages.items()]
        columns = ("a batch", "mean", "p50", "p90", "p99", "longest", "")
        title = "Time by stage"
        yield report.Table(columns, times, title, ends_with_text=True, drops_columns=True)
        if any(each.worker != CONSUMER for each in figures.workers):
            yield self._by_worker()
        if figures.ready:
            yield report.Shares("batches ready when the next one is requested", self._ready())
        if figures.slowest:
            usual = duration(figures.sample or 0)
            named = ", ".join(f"{index} ({duration(spent)})" for index, spent in figures.slowest)
            yield report.Words([f"slowest samples, by index (usual: {usual}): {named}"])

    def _by_worker(self) -> report.Table:
        """Show what each worker did, with the stages that take longest first."""
        stages = sorted(self.figures.stages, key=lambda name: -self.figures.stages[name].mean)
        rows = [
            (
                *(worker_name(each.worker), each.batches, percent(each.busy)),
                *(duration(each.batch.p50), duration(each.batch.p90)),
                *(duration(each.stages[name]) if name in each.stages else "-" for name in stages),
            )
            for each in self.figures.workers
        ]
        columns = ("by worker", "batches", "busy", "p50", "p90", *stages)
        return report.Table(columns, rows, "By worker", most=_SHOWN_WORKERS, drops_columns=True)

    def _ready(self) -> list[tuple[str, float, str]]:
        """Return how many batches were ready when the next was requested, and how often."""
        ready = self.figures.ready
        most = min(max(ready), _MOST_READY)
        rows = [(str(count), ready.get(count, 0.0)) for count in range(most)]
        more = sum(share for count, share in ready.items() if count >= most)
        rows.append((f"{most}+" if max(ready) > most else str(most), more))
        return [(name, share, percent(share)) for name, share in rows]

    def _advice(self) -> list[report.Part]:
        advice = [(each.change, each.why) for each in self.verdict.advice]
        if advice:
            return [report.Advice("What to change", advice)]
        return [report.Words(["Nothing to change."])] if self.verdict.bound == "step" else []

    def _tuning(self) -> list[report.Part]:
        if self.tuning is None:
            return []
        trials = ["Tuning:", *map(str, self.tuning.trials)]
        return [report.Words(trials), report.Words([self.tuning.words], "strong")]


def _times(spread: Spread) -> Sequence[str]:
    return [*map(duration, (spread.mean, spread.p50, spread.p90, spread.p99, spread.longest))]


def _tuning_as_dict(tuning: Tuning) -> dict[str, Any]:
    return {
        "now": _trial_as_dict(tuning.now),
        "best": _trial_as_dict(tuning.best),
        "trials": [_trial_as_dict(trial) for trial in tuning.trials],
        "stopped": tuning.stopped,
    }


def _trial_as_dict(trial: Trial) -> dict[str, Any]:
    return {
        **trial.settings.options(),
        "batches_per_second": trial.rate,
        "waiting": trial.waiting,
        "measurements": len(trial.rates),
        "refused": trial.refused or None,
    }


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

    def measure(options: dict[str, Any], within: float, *, finds_slow: bool = False) -> Measured:
        measurement = Measurement(
            options=options,
            batches=batches,
            seconds=within,
            finds_slow=finds_slow,
            deadline=monotonic() + sandbox.seconds_left * _USED,
            step_seconds=step_ms / 1000,
        )
        time_up = (
            f"the loader was still busy with a batch when its {seconds:g} seconds were up. "
            "Find out what it waits for, or give it more time."
        )
        found = sandbox.result(measurement, "the loader failed", time_up)
        if not found.steps:
            msg = f"the loader over {found.subject.dataset} delivered no batch. Give it some data."
            raise FactoryError(msg)
        return found

    with contextlib.closing(sandbox):
        share = _SHARE_WITH_TUNING if tune else _USED
        measured = measure({}, share * seconds, finds_slow=True)
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
            lambda options: figures_of(
                measure(options, max(sandbox.seconds_left / _TRIALS, _LEAST_SECONDS))
            ),
            time_left=lambda: (sandbox.seconds_left - _LEAST_SECONDS) / seconds,
            on_trial=on_trial,
            on_progress=on_progress,
        )
        return replace(found, tuning=tuning)
