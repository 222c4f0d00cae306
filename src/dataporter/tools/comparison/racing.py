"""Delivery: contenders take turns on each workload, in a process of its own.

`python -m dataporter.tools.comparison.racing FILE SECONDS` adds a line of JSON to the file for each
workload.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dataporter.tools.child_processes import die_with_command, take_offspring_along
from dataporter.tools.comparison.contenders import CONTENDERS, installed
from dataporter.tools.comparison.measure import in_turns
from dataporter.tools.comparison.pausing import go_on, in_its_turn, offspring, stop, stoppable
from dataporter.tools.comparison.workloads import WORKLOADS, Workload

_ROUNDS = 9  # at most
_UNHURRIED = 165.0  # seconds of delivery from which on epochs have their full length


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """How long each contender took for the same number of samples, in turns."""

    workload: str
    samples: int
    times: dict[str, list[float]]  # seconds; empty for one that failed
    failed: dict[str, str]  # why

    def speed(self, who: str) -> float | None:
        """Samples a second, the median of all turns."""
        times = self.times.get(who)
        return self.samples / statistics.median(times) if times else None

    def ratio(self, who: str, to: str) -> float | None:
        """How many times as fast as another one."""
        speed, other = self.speed(who), self.speed(to)
        return speed / other if speed and other else None


def race(workload: Workload, seconds: float, hurry: float) -> Race:
    """Have all that are installed deliver a workload, for about so many seconds."""
    until = time.monotonic() + seconds
    step = workload.batch_size * workload.workers
    length = max(int(workload.length * hurry) // step, 2) * step
    dataset = workload.make(length)
    batches = length // workload.batch_size
    streams: dict[str, Iterator[Any]] = {}
    turns: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    for who in installed():
        before = offspring()
        stream = CONTENDERS[who](dataset, workload.batch_size, workload.workers)
        work = partial(_take, stream, batches)
        try:
            work()  # starts workers, and warms up
        except Exception as error:  # noqa: BLE001  whatever ails one, the others can run
            failed[who] = f"{type(error).__name__}: {error}"
            continue
        workers = stoppable(offspring() - before)
        stop(workers)
        streams[who], turns[who] = stream, in_its_turn(work, workers)
    times = in_turns(turns, _ROUNDS, until)
    go_on(offspring())
    for stream in streams.values():
        with suppress(Exception):
            stream.close()  # type: ignore[attr-defined]  # a generator, which ends its workers
    streams.clear()
    turns.clear()
    gc.collect()
    return Race(workload=workload.title, samples=length, times=times, failed=failed)


def _take(stream: Iterator[Any], batches: int) -> None:
    deque(itertools.islice(stream, batches), maxlen=0)


def main(file: Path, seconds: float) -> None:
    """Run the races one after the other, each in its share of the time that is left."""
    die_with_command()
    warnings.filterwarnings("ignore")  # torch counts cores, torchdata uses what torch deprecated
    torch.set_num_threads(1)
    deadline = time.monotonic() + seconds
    with take_offspring_along(), file.open("a", buffering=1) as lines:
        for number, workload in enumerate(WORKLOADS):
            left = deadline - time.monotonic()
            if number and left <= 0:
                break
            found = race(workload, left / (len(WORKLOADS) - number), min(1, seconds / _UNHURRIED))
            lines.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
