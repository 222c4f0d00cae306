"""Delivery: loaders take turns on each workload.

Grain's and SPDL's passes have no end, so their workers would fetch ahead while others have their
turn. Workers are therefore suspended between the turns of their loader.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
from contenders import CONTENDERS, installed
from measure import in_turns
from workloads import Workload

ROUNDS = 9  # at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Seconds of each contender for the same number of samples, in turns."""

    workload: str
    samples: int
    times: dict[str, list[float]]  # seconds of each turn
    failed: dict[str, str]  # reasons

    def speed(self, who: str) -> float | None:
        """Samples a second, the median of all turns."""
        times = self.times.get(who)
        return self.samples / statistics.median(times) if times else None

    def ratio(self, who: str, to: str) -> float | None:
        """The speed divided by that of another contender."""
        speed, other = self.speed(who), self.speed(to)
        return speed / other if speed and other else None


def race(workload: Workload, seconds: float, share: float) -> Race:
    """Deliver a workload with every installed loader, for about so many seconds.

    `share` of the workload's samples is one turn.
    """
    until = time.monotonic() + seconds
    step = workload.batch_size * workload.workers
    length = max(int(workload.length * share) // step, 2) * step
    dataset = workload.make(length)
    batches = length // workload.batch_size
    streams: dict[str, Iterator[Any]] = {}
    turns: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    for who in installed():
        before = children()
        stream = CONTENDERS[who](dataset, workload.batch_size, workload.workers)
        work = partial(_take, stream, batches)
        try:
            work()  # starts workers, and warms up
        except Exception as error:  # noqa: BLE001  whatever ails one, the others can run
            failed[who] = f"{type(error).__name__}: {error}"
            continue
        workers = children() - before
        suspend(workers)
        streams[who], turns[who] = stream, partial(take_turn, work, workers)
    try:
        times = in_turns(turns, ROUNDS, until)
    finally:
        resume(children())
    for stream in streams.values():
        with suppress(Exception):
            stream.close()  # type: ignore[attr-defined]  # a generator, which ends its workers
    streams.clear()
    turns.clear()
    gc.collect()
    return Race(workload=workload.title, samples=length, times=times, failed=failed)


def children() -> set[psutil.Process]:
    """All processes below this one, except the one that multiprocessing shares among them."""
    found = psutil.Process().children(recursive=True)
    return {child for child in found if "resource_tracker" not in _command_line(child)}


def _command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def suspend(processes: set[psutil.Process]) -> None:
    """Stop processes until they are resumed."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()


def resume(processes: set[psutil.Process]) -> None:
    """Let suspended processes run."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def take_turn(work: Callable[[], None], workers: set[psutil.Process]) -> None:
    """Run the workers only while the work is done."""
    resume(workers)
    work()
    suspend(workers)


def _take(stream: Iterator[Any], batches: int) -> None:
    deque(itertools.islice(stream, batches), maxlen=0)
