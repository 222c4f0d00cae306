"""Figures of a measurement: where the time goes, by stage and by worker, and how long waits are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dataporter.fetch.timing import STAGES, Made
from dataporter.tools.profile.measuring import Measured, Slow, Step, name_of_sample

_LONG_PASS = 4  # times the workers; the beginning of a shorter pass is kept
_MUCH_GROWTH = 2**24  # bytes of half a pass; less may be due to allocators


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The distribution of a duration, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """The work of one worker."""

    worker: int  # CONSUMER for batches that the consumer makes itself
    batches: int
    busy: float  # share of the time
    batch: Spread  # all stages together
    stages: dict[str, float]  # mean seconds for a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a run. Those of workers are empty if nothing was seen of them.

    Waits and rates are those of a long run: the first batches of a pass, in which workers start
    up, are left out. `first` is the wait for the very first.
    """

    batches: int
    passes: int
    seconds: float
    step: float  # simulated seconds
    waiting: float  # share of the time
    batches_per_second: float
    samples_per_batch: float | None
    bytes_per_batch: float
    bytes_by_dtype: dict[str, float]  # share of them
    first: float  # mean seconds until the first batch of a pass
    wait: Spread
    stages: dict[str, Spread]  # of making a batch
    take: Spread | None  # reading a batch from shared memory, by the consumer
    making: float | None  # mean seconds of a worker for a batch
    computing: float | None  # share of that in which it computes, or waits for a core
    queued: float | None  # share of that in which it waits for a core
    workers: tuple[WorkerFigures, ...]
    ready: dict[int, float]  # batches ready when the next is requested: share of the requests
    sample: float | None  # seconds of the usual sample, if samples were timed one by one
    slowest: tuple[Slow, ...]  # samples that are far slower than most at each fetch
    slow_part: float  # mean seconds of `making` that these samples take beyond the usual
    growth: float  # bytes of memory that each sample leaves behind, 0 if none are seen
    draws: bool  # whether samples draw random numbers, and so are fetched one by one

    @property
    def bytes_per_second(self) -> float:
        """Bytes of tensors and arrays, delivered per second."""
        return self.bytes_per_batch * self.batches_per_second

    @property
    def samples_per_second(self) -> float | None:
        """Samples delivered per second; None if their number is unknown."""
        if self.samples_per_batch is None:
            return None
        return self.samples_per_batch * self.batches_per_second


def figures_of(measured: Measured) -> Figures:
    """Compute all figures of a measurement with at least one step."""
    steps = measured.steps
    steady = _steady(steps, measured.subject.makers)
    waits = [(step.got - step.asked) / 1e9 for step in steady]
    pauses = [(step.done - step.got) / 1e9 for step in steady]
    total = max(sum(waits) + sum(pauses), 1e-9)
    noted = [each for each in measured.made if each.samples and each.spans]
    made = [each for each in noted for _ in range(each.stands_for)]
    makings = [(each.spans[-1][2] - each.spans[0][1]) / 1e9 for each in made]
    takes = [(each.handed - each.there) / 1e9 for each in measured.handed]
    sizes: Counter[str] = Counter()
    for step in steps:
        sizes.update(step.bytes)
    size = sizes.total()
    ready = Counter(each.ready for each in measured.handed)
    usual = [batch.usual for batch in made if batch.usual]
    firsts = [(step.got - step.asked) / 1e9 for step in steps if step.is_first]
    size_of_batch: float | None = measured.subject.batch_size
    if made:
        size_of_batch = float(np.mean([each.samples for each in made]))
    return Figures(
        batches=len(steps),
        passes=len(firsts),
        seconds=(steps[-1].done - steps[0].asked) / 1e9,
        step=measured.step_seconds,
        waiting=sum(waits) / total,
        batches_per_second=len(steady) / total,
        samples_per_batch=size_of_batch,
        bytes_per_batch=size / len(steps),
        bytes_by_dtype={name: count / size for name, count in sizes.most_common() if size},
        first=float(np.mean(firsts)),
        wait=_spread(waits),
        stages={name: _spread(times) for name, times in _times_by_stage(made).items()},
        take=_spread(takes) if takes and not measured.subject.in_threads else None,
        making=float(np.mean(makings)) if makings else None,
        computing=_share(made, lambda batch: (batch.cpu or 0) + (batch.queued or 0)),
        queued=_share(made, lambda batch: batch.queued or 0),
        workers=tuple(_by_worker(made)),
        ready={count: ready[count] / len(measured.handed) for count in sorted(ready)},
        sample=float(np.median(usual)) / 1e9 if usual else None,
        slowest=measured.slow,
        slow_part=_slow_part(measured, len(made)),
        growth=_growth(measured.memory) / (size_of_batch or 1),
        draws=any(each.draws for each in made),
    )


def _steady(steps: Sequence[Step], makers: int) -> Sequence[Step]:
    """Leave out the first steps of each pass, in which workers start up."""
    starts = [number for number, step in enumerate(steps) if step.is_first]
    steady: list[Step] = []
    for start, end in zip(starts, [*starts[1:], len(steps)], strict=True):
        unsteady = makers + 1 if end - start > _LONG_PASS * (makers + 1) else 1
        steady += steps[start + unsteady : end]
    return steady or steps


def _spread(seconds: Sequence[float]) -> Spread:
    p50, p90, p99 = np.percentile(seconds, [50, 90, 99]).tolist()
    return Spread(
        mean=float(np.mean(seconds)), p50=p50, p90=p90, p99=p99, longest=float(max(seconds))
    )


def _times_by_stage(made: Iterable[Made]) -> dict[str, list[float]]:
    times = defaultdict(list)
    for batch in made:
        spent: Counter[int] = Counter()
        for stage, start, end in batch.spans:
            spent[stage] += end - start
        for stage, total in spent.items():
            times[STAGES[stage]].append(total / 1e9)
    return {name: times[name] for name in STAGES if name in times}


def _by_worker(made: Sequence[Made]) -> Iterable[WorkerFigures]:
    if not made:
        return
    began = min(batch.spans[0][1] for batch in made)
    ended = max(batch.spans[-1][2] for batch in made)
    for worker in sorted({batch.worker for batch in made}):
        own = [batch for batch in made if batch.worker == worker]
        times = [(batch.spans[-1][2] - batch.spans[0][1]) / 1e9 for batch in own]
        stages = {name: sum(each) / len(own) for name, each in _times_by_stage(own).items()}
        yield WorkerFigures(
            worker=worker,
            batches=len(own),
            busy=sum(times) / max((ended - began) / 1e9, 1e-9),
            batch=_spread(times),
            stages=stages,
        )


def _share(made: Sequence[Made], of: Callable[[Made], int]) -> float | None:
    """Return a share of the time for a batch, over batches whose CPU time is known."""
    known = [batch for batch in made if batch.cpu is not None]
    spent = sum(batch.spans[-1][2] - batch.spans[0][1] for batch in known)
    return min(sum(map(of, known)) / spent, 1.0) if spent else None


def _slow_part(measured: Measured, batches: int) -> float:
    named = {index for index, _ in measured.slow}
    extra = sum(
        spent - batch.usual
        for batch in measured.made
        for index, spent in batch.slowest
        if name_of_sample(index) in named
    )
    return extra / 1e9 / max(batches, 1)


def _growth(memory: Sequence[Sequence[int]]) -> float:
    """Return the bytes that memory grows by in a batch, in the second half of the longest pass."""
    longest = max(memory, key=len, default=())
    late = longest[len(longest) // 2 :]
    if not late or 0 in late or late[-1] - late[0] < _MUCH_GROWTH:
        return 0.0
    return (late[-1] - late[0]) / (len(late) - 1)
