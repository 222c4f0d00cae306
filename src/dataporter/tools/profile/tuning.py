"""The search for better settings: workers, engine and prefetching, tried on the loader itself.

More workers are tried as long as they help, in processes and in threads, then more batches ahead.
Finally the best settings and the present ones are measured again, in turns. None of these settings
changes the data, except that an iterable has as many lanes as workers unless `lanes` is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

from dataporter.errors import FactoryError
from dataporter.tools.profile.figures import KEEPS_UP, Figures, most_workers, workers_needed
from dataporter.tools.profile.measuring import Subject
from dataporter.tools.units import percent, rate

_HELPS = 1.03  # times the rate; a smaller gain is none
_PATIENCE = 2  # changes in a row without a gain, before the search stops
_AGAIN = 2  # more measurements of the best settings and the present ones
_KEPT_FOR_AGAIN = 0.3  # share of the time
_DEEPER = (4, 8)  # prefetch factors
_FEWEST_COUNTS = 2  # numbers of workers to try before time is kept for anything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a loader that change its speed only."""

    num_workers: int
    engine: str
    prefetch_factor: int

    def options(self) -> dict[str, Any]:
        """Return the arguments of a loader with these settings."""
        if not self.num_workers:
            return {"num_workers": 0}
        return {
            "num_workers": self.num_workers,
            "engine": self.engine,
            "prefetch_factor": self.prefetch_factor,
        }

    def __str__(self) -> str:
        if not self.num_workers:
            return "num_workers=0"
        engine = ', engine="threads"' if self.engine == "threads" else ""
        return f"num_workers={self.num_workers}{engine}, prefetch_factor={self.prefetch_factor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Settings, and all measurements of them, or the reason why they were refused."""

    settings: Settings
    rates: tuple[float, ...] = ()  # batches in a second
    waits: tuple[float, ...] = ()  # share of the time
    refused: str = ""
    is_now: bool = False  # the present settings

    @property
    def rate(self) -> float:
        """The median of batches per second; 0 if the settings were refused."""
        return median(self.rates) if self.rates else 0.0

    @property
    def waiting(self) -> float:
        """The median share of the time that is spent waiting."""
        return median(self.waits) if self.waits else 1.0

    def with_figures(self, figures: Figures) -> Trial:
        """Return the trial with one more measurement."""
        return replace(
            self,
            rates=(*self.rates, figures.batches_per_second),
            waits=(*self.waits, figures.waiting),
        )

    def __str__(self) -> str:
        if self.refused:
            return f"{self.settings}: {self.refused}"
        several = f"median of {len(self.rates)}" if len(self.rates) > 1 else ""
        notes = ", ".join(filter(None, ("now" if self.is_now else "", several)))
        found = f"{self.settings}: {rate(self.rate)} batches/s, {percent(self.waiting)} waiting"
        return f"{found} ({notes})" if notes else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All trials, with the present settings and the best."""

    now: Trial
    best: Trial
    trials: tuple[Trial, ...]
    stopped: bool  # by the end of its time

    @property
    def words(self) -> str:
        """The advice."""
        rest = " The time was up before all settings were tried." if self.stopped else ""
        if self.best.settings == self.now.settings:
            return f"Keep the settings: none that was tried is better than {self.now}.{rest}"
        factor = self.best.rate / max(self.now.rate, 1e-9)
        gain = f"{factor:.1f} times as fast as" if factor >= _HELPS else "cheaper and as fast as"
        return f"Best: {self.best}, {gain} now ({rate(self.now.rate)} batches/s).{rest}"


# Measures the loader with other options; raises `FactoryError` if it does not take them.
Measure: TypeAlias = Callable[[dict[str, Any]], Figures]


def search(
    subject: Subject,
    figures: Figures,
    measure: Measure,
    *,
    time_left: Callable[[], float],
    on_trial: Callable[[Trial], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Try settings as long as there is time.

    `figures` belong to the present settings. `time_left` returns the share that is left of it.
    `on_trial` is called with the present settings first, and again with the medians of settings
    that were measured several times. `on_progress` is called before each
    measurement with the number that are done, and the most that there may be.
    """
    searching = _Search(
        subject, figures, measure, time_left, on_trial or _ignore, on_progress or _ignore
    )
    searching.try_workers()
    searching.try_prefetching()
    searching.measure_again()
    return searching.outcome()


def _ignore(*_: Any) -> None:
    """Do nothing, in place of a callback that is not given."""


@dataclass(eq=False)
class _Search:
    subject: Subject
    figures: Figures
    measure: Measure
    time_left: Callable[[], float]
    on_trial: Callable[[Trial], None]
    on_progress: Callable[[int, int], None]

    def __post_init__(self) -> None:
        subject = self.subject
        self._now = Settings(
            num_workers=subject.num_workers,
            engine="threads" if subject.in_threads else "processes",
            prefetch_factor=subject.prefetch_factor,
        )
        self._tried = {self._now: Trial(settings=self._now, is_now=True).with_figures(self.figures)}
        self._engines = ["processes"] if subject.has_lanes else ["processes", "threads"]
        self._stopped, self._measured = False, 0
        self._most = len(self._engines) * len(self._worker_counts()) + len(_DEEPER) + 2 * _AGAIN
        self.on_trial(self._tried[self._now])

    def try_workers(self) -> None:
        """Try more and more workers, as long as that helps."""
        for engine in sorted(self._engines, key=lambda name: name != self._now.engine):
            reached, failed = 0.0, 0
            for count in self._worker_counts():
                settings = Settings(
                    num_workers=count, engine=engine, prefetch_factor=self._now.prefetch_factor
                )
                trial = self._try(settings)
                if trial is None:
                    return
                # A single slow trial may be due to other processes of the machine.
                failed = failed + 1 if trial.rate < reached * _HELPS else 0
                if trial.refused or failed == _PATIENCE or trial.waiting < KEEPS_UP / 2:
                    break
                reached = max(reached, trial.rate)

    def _worker_counts(self) -> list[int]:
        most = most_workers(self.subject, self.figures)
        if not self.subject.has_lanes:  # on one core, too, a second worker may fetch ahead
            most = max(most, _FEWEST_COUNTS)
        counts = {min(workers_needed(self.figures), most), most}
        count = 1
        while count < most:
            counts.add(count)
            count *= 2
        return sorted(counts)

    def try_prefetching(self) -> None:
        """Try more batches ahead, unless there is hardly any waiting."""
        for factor in _DEEPER:
            best = self._best()
            if best.waiting < KEEPS_UP / 2 or not best.settings.num_workers:
                return
            if factor > best.settings.prefetch_factor:
                self._try(replace(best.settings, prefetch_factor=factor))

    def measure_again(self) -> None:
        """Measure the best and the present settings in turns: one measurement may be chance."""
        for _ in range(_AGAIN):
            for settings in dict.fromkeys((self._best().settings, self._now)):
                self._try(settings, again=True)
        for trial in self._tried.values():  # their medians are what the outcome speaks of
            if len(trial.rates) > 1:
                self.on_trial(trial)

    def _try(self, settings: Settings, *, again: bool = False) -> Trial | None:
        if settings in self._tried and not again:
            return self._tried[settings]
        if self.time_left() <= (0.0 if again else self._kept()):
            self._stopped = self._stopped or not again
            return None
        self.on_progress(self._measured, self._most)
        self._measured += 1
        trial = self._tried.get(settings, Trial(settings=settings))
        try:
            trial = trial.with_figures(self.measure(settings.options()))
        except FactoryError as error:
            trial = replace(trial, refused=str(error))
        self._tried[settings] = trial
        if not again:
            self.on_trial(trial)
        return trial

    def _kept(self) -> float:
        """Return the share of the time that is kept for measuring again."""
        counts = {settings.num_workers for settings in self._tried} - {self._now.num_workers}
        return 0.0 if len(counts) < _FEWEST_COUNTS else _KEPT_FOR_AGAIN

    def _best(self) -> Trial:
        """Return the cheapest settings that are as fast as the fastest."""
        trials = [trial for trial in self._tried.values() if trial.rates]
        fastest = max(trial.rate for trial in trials)
        return min(
            (trial for trial in trials if trial.rate * _HELPS >= fastest),
            key=lambda trial: (
                trial.settings.num_workers,
                trial.settings.engine != self._now.engine,
                trial.settings.prefetch_factor,
            ),
        )

    def outcome(self) -> Tuning:
        return Tuning(
            now=self._tried[self._now],
            best=self._best(),
            trials=tuple(self._tried.values()),
            stopped=self._stopped,
        )
