"""A profile as it is read: text in 80 columns, or builtins for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dataporter.fetch.timing import CONSUMER
from dataporter.law.explanation import WIDTH
from dataporter.tools.profile.figures import Figures, Spread, WorkerFigures
from dataporter.tools.profile.measuring import Measured
from dataporter.tools.profile.tuning import Trial, Tuning
from dataporter.tools.profile.units import duration, percent, rate, size
from dataporter.tools.profile.verdict import LACKS_CORES, Verdict

_SHOWN_WORKERS = 16
_SHOWN_STAGES = 4  # that fit beside what else is said of a worker
_BAR = 40  # columns of a bar that is all
_MOST_READY = 8  # batches; that many and more are one row

# What stages are, for those who do not know the words.
MEANING = {
    "fetch": "samples are read from the dataset",
    "collate": "a batch is made of them",
    "convert": "its dtypes are changed",
    "state": "where the lane stands is written down",
    "write": "transport: what is not there yet goes into shared memory",
    "pin": "transport: it is copied into page-locked memory",
    "take": "transport: the consumer finds it in shared memory",
    "wait": "the consumer waits for it, all in all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured, what it comes to, and what follows; `str()` of it is to be read."""

    measured: Measured
    figures: Figures
    verdict: Verdict
    tuning: Tuning | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same as builtins, for JSON; without what was noted of each batch."""
        figures = asdict(self.figures)
        figures["bytes_per_second"] = self.figures.bytes_per_second
        figures["samples_per_second"] = self.figures.samples_per_second
        figures["workers"] = list(figures["workers"])
        figures["ready"] = {str(ready): share for ready, share in self.figures.ready.items()}
        figures["slowest"] = [
            {"index": index, "seconds": spent} for index, spent in self.figures.slowest
        ]
        verdict = asdict(self.verdict)
        return {
            "loader": asdict(self.measured.subject),
            "step_ms": self.measured.step_seconds * 1000,
            "figures": figures,
            "verdict": {**verdict, "advice": list(verdict["advice"])},
            "tuning": None if self.tuning is None else _tuning_as_dict(self.tuning),
        }

    def heading(self) -> str:
        """What was measured."""
        return "\n".join(_wrapped(line) for line in self.heading_lines())

    def heading_lines(self) -> list[str]:
        """The same, a sentence each."""
        figures, step = self.figures, self.measured.step_seconds
        steps = f"steps of {duration(step)}, simulated" if step else "no steps between"
        samples = figures.samples_per_second
        rates = [
            f"{rate(figures.batches_per_second)} batches/s",
            "" if samples is None else f"{rate(samples)} samples/s",
            f"{size(figures.bytes_per_second)}/s" if figures.bytes_per_batch else "",
        ]
        return [
            str(self.measured.subject),
            f"{figures.batches} batches in {duration(figures.seconds)}, {steps}: "
            + ", ".join(each for each in rates if each),
        ]

    def notes(self) -> list[str]:
        """What one should know of the figures."""
        queued, subject = self.figures.queued or 0.0, self.measured.subject
        notes = []
        if queued > LACKS_CORES:
            notes.append(
                f"For {percent(queued)} of their time, those who make batches had no core for it: "
                f"other processes were busy on the machine, or more than its {subject.cores} cores "
                "were asked for. Alone, it would be faster."
            )
        if not subject.is_ours:
            notes.append(
                f"Of {subject.loader} only waits and steps can be seen; make it a "
                "dataporter.ResumableDataLoader to see what its workers do."
            )
        return notes

    def text(self) -> str:
        """All but the tuning."""
        return "\n\n".join("\n".join(block) for block in map(list, self._blocks()) if block)

    def _blocks(self) -> Iterator[Iterator[str] | list[str]]:
        yield [self.heading()]
        yield [_wrapped(self.verdict.words), *map(_wrapped, self.notes())]
        yield self._stages()
        yield self._workers()
        yield self._ready()
        yield self._slowest()
        yield self._advice()

    def _stages(self) -> Iterator[str]:
        yield f"{'a batch':12}{''.join(f'{name:>10}' for name in _COLUMNS)}"
        for name, spread in self.rows():
            yield f"  {name:10}{''.join(f'{duration(each):>10}' for each in _values(spread))}"

    def rows(self) -> list[tuple[str, Spread]]:
        """The stages of a batch, by who makes it and who waits for it."""
        rows = list(self.figures.stages.items())
        if self.figures.take is not None:
            rows.append(("take", self.figures.take))
        return [*rows, ("wait", self.figures.wait)]

    def _workers(self) -> Iterator[str]:
        workers = self.figures.workers
        if not self.has_workers:
            return
        stages = self.figures.stages
        longest = sorted(stages, key=lambda name: stages[name].mean)[-_SHOWN_STAGES:]
        names = [name for name in stages if name in longest]
        columns = [*WORKER_COLUMNS, *names]
        yield f"{'by worker':12}{''.join(f'{name:>8}' for name in columns)}"
        for worker in workers[:_SHOWN_WORKERS]:
            cells = worker_cells(worker, names)
            yield f"  {worker_name(worker.worker):10}{''.join(f'{cell:>8}' for cell in cells)}"
        if len(workers) > _SHOWN_WORKERS:
            yield f"  and {len(workers) - _SHOWN_WORKERS} more"

    @property
    def has_workers(self) -> bool:
        """Whether somebody but the consumer was seen to make batches."""
        return any(each.worker != CONSUMER for each in self.figures.workers)

    def _ready(self) -> Iterator[str]:
        rows = self.ready_rows()
        if not rows:
            return
        yield "batches that were there when one was asked for"
        for name, share in rows:
            yield f"  {name:>4} {percent(share):>7}  {'█' * round(share * _BAR)}".rstrip()

    def ready_rows(self) -> list[tuple[str, float]]:
        """How many batches were there when one was asked for, and how often."""
        ready = self.figures.ready
        if not ready:
            return []
        most = min(max(ready), _MOST_READY)
        rows = [(str(count), ready.get(count, 0.0)) for count in range(most)]
        more = sum(share for count, share in ready.items() if count >= most)
        name = f"{most}+" if max(ready) > most else str(most)
        return [*rows, (name, more)]

    def _slowest(self) -> Iterator[str]:
        if not self.figures.slowest:
            return
        usual = duration(self.figures.sample or 0)
        named = (f"{index} ({duration(spent)})" for index, spent in self.figures.slowest)
        yield _wrapped(
            f"slowest samples, by index (the usual one takes {usual}): " + ", ".join(named)
        )

    def _advice(self) -> Iterator[str]:
        advice = self.verdict.advice
        if not advice:
            if self.verdict.bound == "step":
                yield "Nothing to change."
            return
        yield "What to change"
        for number, each in enumerate(advice, 1):
            yield _wrapped(f"{each.change}: {each.why}", f" {number}. ", "    ")

    def tuning_text(self) -> str:
        """What the search for settings came to."""
        return "" if self.tuning is None else _wrapped(self.tuning.words)

    def __str__(self) -> str:
        if self.tuning is None:
            return self.text()
        trials = "\n".join(trial_line(trial) for trial in self.tuning.trials)
        return f"{self.text()}\n\n{TRIALS}\n{trials}\n\n{self.tuning_text()}"


_COLUMNS = ("mean", "p50", "p90", "p99", "longest")


def _values(spread: Spread) -> tuple[float, ...]:
    return spread.mean, spread.p50, spread.p90, spread.p99, spread.longest


WORKER_COLUMNS = ("batches", "busy", "p50", "p90")


def worker_name(worker: int) -> str:
    """A worker as it is shown."""
    return "consumer" if worker == CONSUMER else f"worker {worker}"


def worker_cells(worker: WorkerFigures, stages: Sequence[str]) -> list[str]:
    """The row of a worker in a table."""
    return [
        str(worker.batches),
        percent(worker.busy),
        duration(worker.batch.p50),
        duration(worker.batch.p90),
        *(duration(worker.stages[name]) if name in worker.stages else "-" for name in stages),
    ]


TRIALS = "Tuning\n  batches/s  waiting  settings"


def trial_line(trial: Trial) -> str:
    """One trial, as a row under `TRIALS`."""
    if trial.refused:
        return _wrapped(f"{trial.settings}: {trial.refused}", f"{'':11}refused  ", " " * 20)
    return f"  {rate(trial.rate):>9}  {percent(trial.waiting):>7}  {trial.settings}"


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


def _wrapped(text: str, first: str = "", others: str = "  ") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
