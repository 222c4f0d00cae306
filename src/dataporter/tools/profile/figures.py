"""The figures of a measurement, and the verdict: whether the loader keeps up, and what to change.

If the loader is too slow, a batch costs more of its workers' time than they have in a step. The
remedy is more workers, or less work for a batch. Each advice names the figures behind it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dataporter.fetch.timing import STAGES, Made
from dataporter.tools.profile.measuring import Measured, Slow, Step, Subject, name_of_sample
from dataporter.tools.units import duration, percent, size

_LONG_PASS = 4  # times the workers; the beginning of a shorter pass is kept
_MUCH_GROWTH = 2**24  # bytes of half a pass; less may be due to allocators
KEEPS_UP = 0.05  # share of the time; less waiting does not matter
LACKS_CORES = 0.2  # share of the workers' time; more waiting for cores distorts the figures

_RESERVE = 1.15  # times the workers that are just enough, since batches differ in cost
_MOSTLY_WAITS = 0.5  # share of computing; with less, workers wait for disks or networks
_MOST_WAITING = 32  # workers to advise at most, if they wait rather than compute
_CHEAP_SAMPLE = 1e-4  # seconds; of less, the overhead of the call is a good part
_LARGE_PART = 0.3  # of the time for a batch, which is worth changing
_LARGE_BATCH = 2**16  # bytes; of fewer, the transport costs next to nothing
_WIDE = ("float64", "int64", "float32")  # dtypes that narrower ones may replace
_RARE_SNAPSHOTS = 10  # batches between states of lanes; a resume reads as many again
_MANY_SAMPLES = 10_000  # for an example, if a dataset has no length


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to change, and why."""

    change: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The bottleneck: the loader or the step."""

    bound: Literal["loader", "step"]
    words: str
    advice: tuple[Advice, ...]


def judge(subject: Subject, figures: Figures) -> Verdict:
    """Say whether the loader keeps up, and what to change."""
    keeps_up = figures.waiting < KEEPS_UP
    share = percent(figures.waiting)
    if keeps_up:
        words = f"STEP-BOUND: the loader keeps up, {share} of the time is spent waiting for it."
    elif not figures.step:
        words = f"LOADER-BOUND: without steps, all time is spent waiting ({share})."
    else:
        words = f"LOADER-BOUND: {share} of the time is spent waiting for batches."
    how = _if_it_keeps_up if keeps_up else _if_it_is_slow
    advice = (*_about_memory(subject, figures), *how(subject, figures))
    return Verdict(bound="step" if keeps_up else "loader", words=words, advice=advice)


def workers_needed(figures: Figures) -> int:
    """Return how many workers keep up with the steps, by the time that a batch takes one.

    Slow samples are left out: workers that wait for one are of no use for the others.
    """
    if not figures.making:
        return 1
    making = figures.making - figures.slow_part
    return math.ceil(_RESERVE * making / max(figures.step, 1e-4))


def most_workers(subject: Subject, figures: Figures) -> int:
    """Return how many workers are useful: one a core, unless they mostly wait."""
    most = subject.cores
    if figures.computing is not None and figures.computing < _MOSTLY_WAITS:
        most = _MOST_WAITING
    if subject.has_lanes:
        most = 1 if subject.in_threads else min(most, subject.lanes or most)
    return most


def _if_it_keeps_up(subject: Subject, figures: Figures) -> Iterator[Advice]:
    needed = workers_needed(figures)
    has_spare = not subject.adapts and not figures.slowest and subject.num_workers > needed + 1
    if figures.making is not None and has_spare:
        yield Advice(
            change=f"num_workers={needed}",
            why=f"is enough: a batch takes a worker {duration(figures.making)}, a step takes "
            f"{duration(figures.step)}.",
        )
    yield from _about_passes(subject, figures)


def _if_it_is_slow(subject: Subject, figures: Figures) -> Iterator[Advice]:
    if not subject.is_ours:
        yield Advice(
            change="dataporter.ResumableDataLoader",
            why="takes the same arguments, and shows where the time goes. Of this loader, only "
            "waits are visible.",
        )
        return
    slow, workers = list(_about_slow_samples(figures)), list(_about_workers(subject, figures))
    if slow and subject.num_workers >= workers_needed(figures):
        workers = []  # nothing that they do makes a slow sample come sooner
    explains_most = figures.slow_part > (figures.making or 0.0) / 2
    yield from (*slow, *workers) if explains_most else (*workers, *slow)
    yield from _about_fetching(subject, figures)
    yield from _about_batches(subject, figures)
    yield from _about_passes(subject, figures)


def _about_workers(subject: Subject, figures: Figures) -> Iterator[Advice]:
    if figures.making is None:
        return
    needed, most = workers_needed(figures), most_workers(subject, figures)
    cost = _cost(figures, figures.making)
    waits = figures.computing is not None and figures.computing < _MOSTLY_WAITS
    if subject.num_workers < min(needed, most):
        why = f"{cost}: {needed} workers would keep up"
        if needed > most:
            why += f", but there are {subject.cores} cores"
        if subject.has_lanes and not subject.lanes:
            why += ". An iterable has as many lanes as workers, so its lanes change with them"
        yield Advice(change=f"num_workers={min(needed, most)}", why=f"{why}.")
        # Threads share the global generators, which the dataset then may not draw from.
        if waits and not (subject.in_threads or subject.has_lanes or figures.draws):
            yield Advice(
                change='engine="threads"',
                why=f"fetching mostly waits ({percent(figures.computing or 0)} of its time is "
                "computing), so threads are as fast as processes and take less memory.",
            )
    elif subject.num_workers and needed > most:
        what = f"all {subject.cores} cores have a worker" if not waits else f"{cost}"
        if subject.has_lanes and subject.lanes and subject.num_workers >= subject.lanes:
            what = f"each of the {subject.lanes} lanes has a worker"
        yield Advice(
            change="less work for a sample, or more cores",
            why=f"{what}, but {needed} workers would be needed: {cost}.",
        )
    elif subject.num_workers and figures.waiting >= KEEPS_UP:
        yield Advice(
            change=f"prefetch_factor={subject.prefetch_factor * 4}",
            why="there are enough workers, but batches arrive unevenly (the median wait is "
            f"{duration(figures.wait.p50)}, one in a hundred is {duration(figures.wait.p99)}). "
            "More batches ahead even that out.",
        )


def _cost(figures: Figures, making: float) -> str:
    cost = f"a batch takes a worker {duration(making - figures.slow_part)}"
    if figures.slow_part:
        cost += " without slow samples"
    if figures.step:
        cost += f", a step takes {duration(figures.step)}"
    return cost


def _about_memory(subject: Subject, figures: Figures) -> Iterator[Advice]:
    if figures.growth:
        samples = subject.samples or _MANY_SAMPLES
        yield Advice(
            change="memory that grows with each sample",
            why=f"each sample leaves {size(figures.growth)} in the memory of the processes that "
            f"fetch: {samples:,} samples take {size(figures.growth * samples)}. Keep nothing in "
            "the dataset that it reads, or bound that cache. Forked workers also copy a list of "
            "Python objects as they read it: keep such tables in arrays.",
        )


def _about_slow_samples(figures: Figures) -> Iterator[Advice]:
    if figures.sample and figures.slowest and (figures.queued or 0.0) <= LACKS_CORES:
        named = ", ".join(f"{index} ({duration(spent)})" for index, spent in figures.slowest)
        factor = f"{figures.slowest[0][1] / figures.sample:,.0f} times"
        yield Advice(
            change=f"the slowest samples: {named}",
            why=f"{factor} the usual {duration(figures.sample)}, at each fetch. Look for what they "
            "have in common; prepare such samples beforehand, or batch them separately.",
        )


def _about_fetching(subject: Subject, figures: Figures) -> Iterator[Advice]:
    fetch = figures.stages.get("fetch")
    if fetch is None or not figures.making or not figures.samples_per_batch:
        return
    each = fetch.p50 / figures.samples_per_batch  # usually: one wait says nothing
    share = fetch.mean / figures.making
    if share <= _LARGE_PART or each >= _CHEAP_SAMPLE:
        return
    if figures.draws:
        yield Advice(
            change="random numbers for a batch at once, drawn in collate_fn",
            why="the dataset draws them, so each sample is seeded and fetched alone: "
            f"{duration(each)} each, {percent(share)} of the time for a batch. __getitems__ does "
            "not help then. A collate_fn is seeded once a batch; its draws depend on the batch "
            "size.",
        )
    elif subject.way == "one by one":
        yield Advice(
            change="__getitems__(indices), a vectorised fetch",
            why=f"samples are fetched one by one: {duration(each)} each, {percent(share)} of the "
            "time for a batch. If the dataset has this method, it is used.",
        )


def _about_batches(subject: Subject, figures: Figures) -> Iterator[Advice]:
    making = figures.making
    if not making:
        return
    shares = {name: spread.mean / making for name, spread in figures.stages.items()}
    if shares.get("collate", 0) > _LARGE_PART:
        who = "your collate_fn" if subject.has_collate_fn else "collating"
        yield Advice(
            change="cheaper collation",
            why=f"{who} takes {percent(shares['collate'])} of the time for a batch. By default, "
            "tensors of equal shape are stacked straight into shared memory.",
        )
    if shares.get("convert", 0) > _LARGE_PART:
        yield Advice(
            change="a cheaper converter",
            why=f"it takes {percent(shares['convert'])} of the time for a batch.",
        )
    if shares.get("state", 0) > _LARGE_PART and subject.snapshot_every < _RARE_SNAPSHOTS:
        yield Advice(
            change=f"snapshot_every_n_steps={_RARE_SNAPSHOTS}",
            why=f"saving the lanes' states takes {percent(shares['state'])} of the time for a "
            "batch.",
        )
    take = figures.take.mean if figures.take else 0.0
    transport = shares.get("write", 0) + shares.get("pin", 0)
    is_felt = transport > _LARGE_PART or take > KEEPS_UP * max(figures.step, making)
    wide = {name: figures.bytes_by_dtype.get(name, 0.0) for name in _WIDE}
    if is_felt and figures.bytes_per_batch >= _LARGE_BATCH and sum(wide.values()) > _LARGE_PART:
        most = max(wide, key=wide.__getitem__)
        yield Advice(
            change="smaller dtypes: converter=..., one of dataporter.converters",
            why=f"transport takes {percent(transport)} of a worker's time and {duration(take)} of "
            f"the consumer's; a batch has {size(figures.bytes_per_batch)}, {percent(wide[most])} "
            f"of it {most}.",
        )


def _about_passes(subject: Subject, figures: Figures) -> Iterator[Advice]:
    processes = subject.num_workers and not subject.in_threads
    extra = figures.first - figures.wait.mean
    if processes and not subject.stays and figures.passes > 1 and extra > 2 * figures.step:
        yield Advice(
            change="persistent_workers=True",
            why=f"the first batch of a pass takes {duration(figures.first)}, since workers are "
            "started for each pass.",
        )
