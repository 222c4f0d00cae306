"""One run of the loader, with simulated training steps, in a process of the sandbox.

The `Subject` describes the loader for other processes; `Measured` is all that was recorded.

The longest fetches of a run are only suspects: a scheduler, another process or a cold disk can make
any sample seem slow. So suspects are fetched again after the run, in turns with ordinary samples,
and named if even their fastest fetch takes far longer than most of those.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import multiprocessing
import os
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from dataporter.fetch.containers import is_plain_list, parts_of
from dataporter.fetch.generators import why_slow
from dataporter.fetch.timing import Handed, Made, Timing
from dataporter.fetch.vectorised import gather_for
from dataporter.layout import counted
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.lanes import has_lanes, is_iterable
from dataporter.system.processes import usable_cores
from dataporter.tools.sandbox.factories import Description, Factory, described, make_loader
from dataporter.utils.dataloader import timed_steps

_SHARE_OF_RUN = 0.9  # of the time, if samples are fetched again after it
_NAMED = 5  # slow samples
_AGAIN = 3  # fetches of a suspect
_MOST = 75  # percent of the samples
_FAR_SLOWER = 5  # times the longest fetch of most samples
_LONG = 1e-3  # seconds; a faster sample is not worth naming
Slow = tuple[int | str, float]  # the index of a sample, and seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Description):
    """Everything about a loader that its times depend on."""

    adapts: bool  # num_workers="auto"
    prefetch_factor: int
    in_threads: bool
    is_ours: bool  # of a plain torch DataLoader, only waits are visible
    lanes: int | None  # as given
    way: str  # how samples are fetched: "gathered", "__getitems__", "one by one" or "iterated"
    has_collate_fn: bool
    stays: bool  # persistent_workers=True
    snapshot_every: int  # batches between states of the lanes
    device: str | None
    cores: int
    slow_generators: str  # why asking them for draws is slow; empty if it is not

    @property
    def makers(self) -> int:
        """The number of processes or threads that make batches."""
        return max(self.num_workers, 1)

    def __str__(self) -> str:
        workers = counted(self.num_workers, "thread" if self.in_threads else "worker")
        return self.line(
            "single samples" if self.batch_size is None else f"batches of {self.batch_size}",
            f"up to {workers}" if self.adapts else workers,
            f"prefetch_factor={self.prefetch_factor}" if self.num_workers else "",
        )


class Step(NamedTuple):
    """One batch as its consumer saw it. Stamps are nanoseconds."""

    asked: int
    got: int
    done: int  # when the step was over
    is_first: bool  # of its pass: workers start up in it
    bytes: dict[str, int]  # of its tensors, by dtype


@dataclass(slots=True, kw_only=True)
class Measured:
    """Everything that was recorded."""

    subject: Subject
    step_seconds: float
    steps: list[Step] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    memory: list[list[int]] = field(default_factory=list)  # bytes after each batch of a pass
    slow: tuple[Slow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A job for the sandbox: measure the loader with these options.

    If the factory's module has computed in parallel when it was imported, torch has a single
    thread here, since OpenMP's threads do not survive a fork.
    """

    options: dict[str, Any] = field(default_factory=dict)
    batches: int  # at most
    seconds: float  # from the moment that the loader is made
    finds_slow: bool  # fetch samples that seem slow again afterwards, within the same time
    deadline: float  # on the monotonic clock, which all processes of a machine share
    step_seconds: float

    def make(self, factory: Factory) -> tuple[DataLoader[Any], Subject]:
        """Make the loader with these options."""
        loader, given = make_loader(factory, self.options)
        return loader, _subject_of(loader, {**(given or {}), **self.options})

    def use(self, loader: DataLoader[Any], facts: Subject) -> Measured:
        """Take batches, pass after pass, until there are enough or the time is up."""
        found = Measured(subject=facts, step_seconds=self.step_seconds)
        timing = Timing()
        if isinstance(loader, ResumableDataLoader):
            loader.note_times(timing)
        now = monotonic()
        deadline = min(now + self.seconds, self.deadline)
        run_until = now + (deadline - now) * (_SHARE_OF_RUN if self.finds_slow else 1.0)
        is_over = False
        while not is_over:
            before = len(found.steps)
            is_over = self._pass(loader, found, run_until) or len(found.steps) == before
        found.made, found.handed = timing.made, timing.handed
        if self.finds_slow:
            found.slow = slow_samples(loader.dataset, found.made, deadline)
        return found

    def _pass(self, loader: DataLoader[Any], found: Measured, deadline: float) -> bool:
        """Measure one pass, and tell whether it is the last."""
        memory: list[int] = []
        found.memory.append(memory)
        taken = []
        left = self.batches - len(found.steps)
        for each in timed_steps(loader, left, self.step_seconds, _bytes_by_dtype):
            taken.append(each)
            memory.append(_own_memory())
            if monotonic() > deadline:
                break
        for number, (asked, got, size) in enumerate(taken):
            done = got + int(self.step_seconds * 1e9)  # of the last step, which was cut off
            if number + 1 < len(taken):
                done = taken[number + 1][0]
            found.steps.append(Step(asked, got, done, number == 0, size))
        return len(found.steps) >= self.batches or monotonic() > deadline


def _own_memory() -> int:
    """Return the bytes that only this process and its workers hold; 0 if the system hides them."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    try:
        figures = [Path(f"/proc/{pid}/statm").read_text().split() for pid in pids]
    except OSError:  # not on Linux, or a worker has just ended
        return 0
    return sum(int(resident) - int(shared) for _, resident, shared, *_ in figures) * mmap.PAGESIZE


def _bytes_by_dtype(batch: Any) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    seen: set[int] = set()  # a tensor that occurs twice is counted once
    parts = [batch]
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            sizes[str(part.dtype).removeprefix("torch.")] += part.nbytes
        elif hasattr(part, "dtype") and hasattr(part, "nbytes"):
            sizes[str(part.dtype)] += part.nbytes
        elif not is_plain_list(part):
            parts += [inner for _, _, inner in parts_of(part) or ()]
    return dict(sizes)


def _subject_of(loader: DataLoader[Any], options: Mapping[str, Any]) -> Subject:
    is_ours = isinstance(loader, ResumableDataLoader)
    collate_fn = options.get("collate_fn", loader.collate_fn)
    has_collate_fn = collate_fn not in (None, default_collate) and loader.batch_size is not None
    device = options.get("device")
    return Subject(
        **described(loader),
        adapts=options.get("num_workers") == "auto" and not has_lanes(loader.dataset),
        prefetch_factor=loader.prefetch_factor or 2,
        in_threads=options.get("engine") == "threads" and loader.num_workers > 0,
        is_ours=is_ours,
        lanes=options.get("lanes"),
        way=_way(loader, has_collate_fn=has_collate_fn),
        has_collate_fn=has_collate_fn,
        stays=loader.persistent_workers,
        snapshot_every=options.get("snapshot_every_n_steps") or 1,  # None: no states are taken
        device=None if device is None else str(device),
        cores=usable_cores(),
        slow_generators=why_slow() if options.get("randomness") else "",
    )


def _way(loader: DataLoader[Any], *, has_collate_fn: bool) -> str:
    dataset: Any = loader.dataset
    if is_iterable(dataset):
        return "iterated"
    if loader.batch_size is not None and not has_lanes(dataset):
        if not has_collate_fn and gather_for(dataset) is not None:
            return "gathered"
        if callable(getattr(dataset, "__getitems__", None)):
            return "__getitems__"
    return "one by one"


def slow_samples(dataset: Any, made: Sequence[Made], deadline: float) -> tuple[Slow, ...]:
    """Find samples that are slow at each fetch, slowest first, until a deadline (monotonic)."""
    least = max(_FAR_SLOWER * _most_take(made), _LONG)
    left = deadline - monotonic()
    suspects = []
    for index, spent in longest(made):
        if spent >= least and _AGAIN * spent <= left:
            suspects.append(index)
            left -= _AGAIN * spent
    ordinary = dict.fromkeys(batch.middle for batch in made if batch.middle is not None)
    others = [index for index in ordinary if index not in suspects][:_NAMED]
    if not suspects or not others:
        return ()
    times = _fetched_again(dataset, [*suspects, *others], deadline)
    usual = [spent for index in others for spent in times[index]]
    least = max(least, _FAR_SLOWER * float(np.percentile(usual, _MOST))) if usual else math.inf
    found = [
        (name_of_sample(index), min(times[index]))
        for index in suspects
        if len(times[index]) == _AGAIN and min(times[index]) >= least
    ]
    return tuple(sorted(found, key=lambda each: -each[1]))


def name_of_sample(index: int | str) -> int | str:
    """Return the index of a sample as reports show it."""
    return index if isinstance(index, int) else reprlib.repr(index)


def longest(made: Sequence[Made]) -> list[Slow]:
    """List the samples with the longest fetches, each once."""
    each: dict[int | str, int] = {}
    for batch in made:
        for index, spent in batch.slowest:
            each[index] = max(spent, each.get(index, 0))
    ranked = sorted(each.items(), key=lambda item: -item[1])
    return [(index, spent / 1e9) for index, spent in ranked[:_NAMED]]


def _most_take(made: Sequence[Made]) -> float:
    """Return the seconds within which most samples are fetched, by batches and within them."""
    timed = [batch for batch in made if batch.usual]
    if not timed:
        return 0.0
    within = np.median([batch.most for batch in timed])
    return float(max(within, np.percentile([batch.usual for batch in timed], _MOST))) / 1e9


def _fetched_again(
    dataset: Any, indices: Sequence[int | str], deadline: float
) -> dict[int | str, list[float]]:
    """Fetch samples several times in turns, without workers; return the seconds of each."""
    loader = ResumableDataLoader(dataset, None, sampler=[*indices] * _AGAIN)
    times: dict[int | str, list[float]] = {index: [] for index in indices}
    samples = iter(loader)
    for index in [*indices] * _AGAIN:
        if monotonic() > deadline:
            break
        began = perf_counter()
        # A sample that only workers can read is skipped; after an error, the next one follows.
        with contextlib.suppress(Exception):
            next(samples)
            times[index].append(perf_counter() - began)
    return times
