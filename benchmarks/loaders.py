"""Delivery by loaders that take turns, with the machine's limit beside them.

    python benchmarks/loaders.py [--workers 0,2] [--rows PATTERN] [--seconds 10] [--out FILE.json]

Each contender is a process of its own, stopped while others have their turn. A turn lasts a third
of a second; turns go on until the noise of each contender is below 3 %, or the row's seconds are
over. The limit is workers x the speed of a bare loop in one process. Beside it stands the speed of
as many bare loops at once, which share caches and memory as workers do.
"""

from __future__ import annotations

import gc
import importlib.util
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from contenders import CONTENDERS, bare_loop, installed
from machine import stay_on_one_core
from measure import AT_ONCE, BARE, Row, Run, Turns, table
from players import Player, close_all
from race import race, turn_seconds
from script import execute, parser, text
from torch.utils.data import IterableDataset
from workloads import WITH_WORKERS, WITHOUT_WORKERS, Workload

from dataporter.system.processes import usable_cores

SECONDS = 10.0  # of a row


class Delivery:
    """The batches of one contender, taken in turns."""

    def __init__(self, batches: Iterator[Any], epoch: int = sys.maxsize) -> None:
        self._batches = batches
        self._epoch = epoch  # in batches

    def warm_up(self, seconds: float) -> int:
        """Deliver for a while; return the number of batches that takes so long.

        A turn longer than an epoch consists of whole epochs.
        """
        number, spent = 1, 0.0
        self.turn(number)  # workers are there
        while spent < seconds / 2:
            number *= 2
            _, spent, _ = self.turn(number)
        size = max(1, round(number * seconds / spent))
        return size if size < self._epoch else -(-size // self._epoch) * self._epoch

    def turn(self, size: int) -> tuple[int, float, float]:
        """Take so many batches."""
        batches = self._batches
        started, began = time.perf_counter(), time.thread_time()
        for _ in range(size):
            next(batches)
        spent = time.thread_time() - began
        return size, time.perf_counter() - started, spent

    def close(self) -> None:
        """End the loader."""
        self._batches.close()  # type: ignore[attr-defined]  # a generator


class AtOnce:
    """Several bare loops at once, each in a process of its own."""

    def __init__(self, make: Callable[[], Delivery], loops: int) -> None:
        self._loops = [Player(make, stops=False) for _ in range(loops)]

    def warm_up(self, seconds: float) -> int:
        """Run all; return the number of batches that takes each of them so long."""
        sizes: list[int] = self._all("warm_up", seconds)
        return min(sizes)

    def turn(self, size: int) -> tuple[int, float, float]:
        """Take so many batches in each; the time is that of all if none ended before others."""
        speeds = [size / seconds for _, seconds, _ in self._all("turn", size)]
        batches = size * len(speeds)
        return batches, batches / sum(speeds), 0.0

    def _all(self, method: str, argument: Any) -> list[Any]:
        for loop in self._loops:
            loop.begin(method, argument)
        return [loop.end() for loop in self._loops]

    def close(self) -> None:
        """End all loops."""
        close_all(self._loops)


def _bare_loop(dataset: Any, batch_size: int, *, on_one_core: bool = False) -> Delivery:
    if on_one_core:
        stay_on_one_core()
    return Delivery(bare_loop(dataset, batch_size))


def _loader(who: str, dataset: Any, workload: Workload, workers: int) -> Delivery:
    if not workers:
        stay_on_one_core()
    batches = CONTENDERS[who](dataset, workload.batch_size, workers)
    return Delivery(batches, workload.length // workload.batch_size)


def measure(workload: Workload, workers: int, chosen: Sequence[str] | None, seconds: float) -> Row:
    """Measure one row: the chosen loaders and the bare loops, for so many seconds of turns."""
    dataset, size = workload.make(workload.length), workload.batch_size
    loaders = chosen or _usual(dataset)
    makers: dict[str, Any] = {BARE: partial(_bare_loop, dataset, size, on_one_core=not workers)}
    if workers:
        makers[AT_ONCE] = partial(AtOnce, partial(_bare_loop, dataset, size), workers)
    makers |= {who: partial(_loader, who, dataset, workload, workers) for who in loaders}
    row = race(
        *(workload.title, workers, makers),
        seconds=seconds,
        batch_size=size,
        unit="samples/s",
    )
    if workers:
        longer = 2 * turn_seconds(seconds)
        peaks = {who: _with_peak(row.turns[who], makers[who], longer) for who in loaders}
        row = replace(row, turns={**row.turns, **peaks})
    if workers >= usable_cores():
        shared = f"{workers} workers and the consumer share {usable_cores()} cores"
        row = replace(row, warnings=(shared, *row.warnings))
    del dataset, makers
    gc.collect()
    return row


def _usual(dataset: Any) -> list[str]:
    """Torch's loader and ours; for streams with a state also torchdata's."""
    stream = isinstance(dataset, IterableDataset)
    names = ("torch", "torchdata", "dataporter") if stream else ("torch", "dataporter")
    return [who for who in names if who in installed()]


def _with_peak(turns: Turns, make: Any, seconds: float) -> Turns:
    """Add the peak memory of a contender, alone in a new process."""
    if turns.failed:
        return turns
    with closing(Player(make)) as player:
        return replace(turns, peak_mb=player.peak_mb("warm_up", seconds))


def rows(
    counts: Sequence[int], pattern: str, chosen: Sequence[str] | None, seconds: float
) -> Iterator[Row]:
    """Measure all chosen rows. A row whose module is missing is left out, and says so."""
    for workers in counts:
        for workload in WITH_WORKERS if workers else WITHOUT_WORKERS:
            if not re.search(pattern, workload.title):
                continue
            if importlib.util.find_spec(workload.needs) is None:
                print(f"not run: {workload.title} needs the module {workload.needs}")
                continue
            yield measure(workload, workers, chosen, seconds)


def tables(measured: Sequence[Row]) -> str:
    """One table for each number of workers."""
    counts = sorted({row.workers for row in measured})
    return "\n".join(
        _table(workers, [row for row in measured if row.workers == workers]) for workers in counts
    )


def _table(workers: int, measured: Sequence[Row]) -> str:
    loaders = [who for who in CONTENDERS if any(who in row.turns for row in measured)]
    others = [who for who in loaders if who in ("torch", "torchdata")]
    header = ["samples/s", *loaders, *(f"to {who}" for who in others), "limit", "of the limit"]
    if workers:
        header += [f"of {workers} bare loops at once"]
        header += [f"consumer µs a batch: {who}" for who in loaders]
        header += [f"peak MB: {who}" for who in loaders]
    else:
        header += ["to torch in CPU time"]
    title = f"{workers} workers" if workers else "Without workers"
    return table(title, header, [_cells(row, loaders, others) for row in measured])


def _cells(row: Row, loaders: Sequence[str], others: Sequence[str]) -> list[str]:
    ours, limit = "dataporter", row.values(BARE)
    cells = [
        row.work,
        *(_speed(row, who) for who in loaders),
        *(text(row.ratio(ours, who), "{:.2f}x") for who in others),
        "-" if limit is None else f"{limit.median * max(row.workers, 1):,.0f}",
        text(row.of_limit(ours), "{:.3f}"),
    ]
    if not row.workers:
        cells.append(text(row.cpu_ratio(ours, "torch"), "{:.2f}x"))
    else:
        each = [row.turns.get(who, Turns()) for who in loaders]
        cells.append(text(row.of_bare_loops(ours), "{:.3f}"))
        cells += [text(turns.consumer_us, "{:.1f}") for turns in each]
        cells += ["-" if turns.peak_mb is None else f"{turns.peak_mb:,.0f}" for turns in each]
    return cells


def _speed(row: Row, who: str) -> str:
    failed = who in row.turns and row.turns[who].failed
    return f"failed: {failed}" if failed else text(row.values(who), "{:,.0f}")


def main(arguments: Sequence[str] | None = None) -> Run:
    """Measure, print the tables, and store the run."""
    options = parser("Compare loaders on the same work, in turns.", SECONDS)
    options.add_argument("--workers", default="0,2", help="numbers of workers, as in 0,2,4,8")
    options.add_argument("--loaders", help='as in torch,grain,dataporter, or "all" installed ones')
    asked = options.parse_args(arguments)
    chosen = asked.loaders and asked.loaders.split(",")
    if asked.loaders == "all":
        chosen = list(installed())
    counts = [int(number) for number in asked.workers.split(",")]
    return execute(rows(counts, asked.rows, chosen, asked.seconds), tables, asked.out)


if __name__ == "__main__":
    main()
