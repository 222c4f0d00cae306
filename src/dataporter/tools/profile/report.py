"""A profile as text of 80 columns, and as builtins for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dataporter.fetch.timing import CONSUMER
from dataporter.layout import paragraphs, table, wrapped
from dataporter.tools.profile.figures import Figures, Spread, WorkerFigures
from dataporter.tools.profile.measuring import Measured
from dataporter.tools.profile.tuning import Trial, Tuning
from dataporter.tools.profile.units import duration, percent, rate, size
from dataporter.tools.profile.verdict import LACKS_CORES, Verdict

_SHOWN_WORKERS = 16
_SHOWN_STAGES = 4  # that fit into a row of a worker
_BAR = 40  # columns of a full bar
_MOST_READY = 8  # batches; more of them share a row

MEANING = {
    "fetch": "reading samples from the dataset",
    "collate": "making a batch of samples",
    "convert": "changing dtypes",
    "state": "saving the lane's state",
    "write": "transport: copying the rest into shared memory",
    "pin": "transport: copying into page-locked memory",
    "take": "transport: reading from shared memory, by the consumer",
    "wait": "all waiting of the consumer",
}


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

    def heading_lines(self) -> list[str]:
        """Describe the loader and the measurement, in a line each."""
        figures, step = self.figures, self.measured.step_seconds
        steps = f"simulated steps of {duration(step)}" if step else "no steps between"
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
        """List warnings about the figures."""
        queued, subject = self.figures.queued or 0.0, self.measured.subject
        notes = []
        if queued > LACKS_CORES:
            notes.append(
                f"Workers spent {percent(queued)} of their time waiting for a CPU core: other "
                f"processes were busy, or there are more workers than the {subject.cores} cores. "
                "On an idle machine the loader is faster."
            )
        if not subject.is_ours:
            notes.append(
                f"Of {subject.loader} only waits and steps are visible. Use a "
                "dataporter.ResumableDataLoader to see what its workers do."
            )
        return notes

    def text(self) -> str:
        """Return all of the profile except the tuning."""
        return "\n\n".join("\n".join(block) for block in map(list, self._blocks()) if block)

    def _blocks(self) -> Iterator[Iterator[str] | list[str]]:
        yield [*map(wrapped, self.heading_lines())]
        yield [wrapped(self.verdict.words), *map(wrapped, self.notes())]
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
        """Return the times of all stages of a batch, and of waits for it."""
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
        """True if workers were seen to make batches."""
        return any(each.worker != CONSUMER for each in self.figures.workers)

    def _ready(self) -> Iterator[str]:
        rows = self.ready_rows()
        if not rows:
            return
        yield "batches ready when the next one is requested"
        for name, share in rows:
            yield f"  {name:>4} {percent(share):>7}  {'█' * round(share * _BAR)}".rstrip()

    def ready_rows(self) -> list[tuple[str, float]]:
        """Return how many batches were ready when the next was requested, and how often."""
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
        yield wrapped(f"slowest samples, by index (usual: {usual}): " + ", ".join(named))

    def _advice(self) -> Iterator[str]:
        advice = self.verdict.advice
        if not advice:
            if self.verdict.bound == "step":
                yield "Nothing to change."
            return
        yield "What to change"
        for number, each in enumerate(advice, 1):
            yield wrapped(f"{each.change}: {each.why}", f" {number}. ", "    ")

    def tuning_text(self) -> str:
        """Return the outcome of the search for settings."""
        return "" if self.tuning is None else wrapped(self.tuning.words)

    def __str__(self) -> str:
        if self.tuning is None:
            return self.text()
        trials = "\n".join(trial_line(trial) for trial in self.tuning.trials)
        return f"{self.text()}\n\n{TRIALS}\n{trials}\n\n{self.tuning_text()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        stages = [
            (name, *map(duration, _values(spread)), MEANING[name]) for name, spread in self.rows()
        ]
        workers = self.figures.workers if self.has_workers else ()
        ready = [(name, percent(share)) for name, share in self.ready_rows()]
        parts = [
            paragraphs(*self.heading_lines(), self.verdict.words, *self.notes()),
            table(stages, columns=["a batch", *_COLUMNS, ""]),
            *_table_if(
                [(worker_name(each.worker), *worker_cells(each, ())) for each in workers],
                ["by worker", *WORKER_COLUMNS],
            ),
            *_table_if(ready, ["batches ready when the next one is requested", ""]),
            paragraphs(*self._slowest(), *self._advice()),
        ]
        if self.tuning is not None:
            trials = [
                (each.settings, rate(each.rate), each.refused or percent(each.waiting))
                for each in self.tuning.trials
            ]
            parts.append(table(trials, columns=["settings", "batches/s", "waiting"]))
            parts.append(paragraphs(self.tuning.words))
        return "\n".join(parts)


def _table_if(rows: Sequence[tuple[object, ...]], columns: Sequence[str]) -> list[str]:
    return [table(rows, columns)] if rows else []


_COLUMNS = ("mean", "p50", "p90", "p99", "longest")


def _values(spread: Spread) -> tuple[float, ...]:
    return spread.mean, spread.p50, spread.p90, spread.p99, spread.longest


WORKER_COLUMNS = ("batches", "busy", "p50", "p90")


def worker_name(worker: int) -> str:
    """Return the name of a worker in tables."""
    return "consumer" if worker == CONSUMER else f"worker {worker}"


def worker_cells(worker: WorkerFigures, stages: Sequence[str]) -> list[str]:
    """Return the row of a worker in a table."""
    return [
        str(worker.batches),
        percent(worker.busy),
        duration(worker.batch.p50),
        duration(worker.batch.p90),
        *(duration(worker.stages[name]) if name in worker.stages else "-" for name in stages),
    ]


TRIALS = "Tuning\n  batches/s  waiting  settings"


def trial_line(trial: Trial) -> str:
    """Return a trial as a row under `TRIALS`."""
    if trial.refused:
        return wrapped(f"{trial.settings}: {trial.refused}", f"{'':11}refused  ", " " * 20)
    several = f"median of {len(trial.rates)}" if len(trial.rates) > 1 else ""
    notes = ", ".join(filter(None, ("now" if trial.is_now else "", several)))
    note = f"  ({notes})" if notes else ""
    figures = f"  {rate(trial.rate):>9}  {percent(trial.waiting):>7}  "
    return wrapped(f"{trial.settings}{note}", figures, " " * len(figures))


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
