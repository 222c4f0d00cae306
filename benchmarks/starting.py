"""Starting: time to the first batch, and between two epochs, with two workers.

    python benchmarks/starting.py [--rows PATTERN] [--seconds 20] [--out FILE.json]

The time to the first batch begins before the loader is built, and workers are started anew each
time. The time between epochs runs from the last batch of an epoch to the first of the next.
"""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import Row, Run, table
from players import die_with_player
from race import race
from script import execute, parser, text
from torch.utils.data import DataLoader

from dataporter.resumable_dataloader import ResumableDataLoader

WORKERS = 2
SECONDS = 20.0  # of a row
LARGE = 2**20  # rows of 1 KB: 1 GB
SMALL = 2**12
EPOCHS = 5  # in a turn

LOADERS: dict[str, Callable[..., DataLoader[Any]]] = {
    "torch": partial(DataLoader, shuffle=True, worker_init_fn=die_with_player),
    "dataporter": partial(ResumableDataLoader, shuffle=True, seed=1),
}


class Kilobytes:
    """Rows of 1 KB in one NumPy array."""

    def __init__(self, length: int) -> None:
        self._rows = np.ones((length, 1024), np.uint8)  # every page is written

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._rows[index])


class Start:
    """Loaders that deliver their first batch."""

    def __init__(self, who: str, dataset: Any, method: str) -> None:
        self._method = method
        self._make = partial(
            LOADERS[who],
            dataset,
            64,
            num_workers=WORKERS,
            multiprocessing_context=method,
        )

    def warm_up(self, seconds: float) -> int:  # noqa: ARG002  a start takes as long as it takes
        """Start once, but not processes that are new each time."""
        if self._method != "spawn":
            self.turn(1)
        return 1

    def turn(self, size: int) -> tuple[int, float, float]:
        """Start, from nothing to the first batch."""
        started, began = time.perf_counter(), time.thread_time()
        loader = self._make()
        batches = iter(loader)
        next(batches)
        seconds, spent = time.perf_counter() - started, time.thread_time() - began
        del loader, batches  # and their workers
        gc.collect()
        return size, seconds, spent


class Epochs:
    """A loader at the ends of its epochs."""

    def __init__(self, who: str, dataset: Any, persistent: bool) -> None:
        options: Any = {"num_workers": WORKERS, "persistent_workers": persistent}
        self._loader = LOADERS[who](dataset, 64, **options)

    def warm_up(self, seconds: float) -> int:  # noqa: ARG002  likewise
        """Run once."""
        self.turn(1)
        return 1

    def turn(self, size: int) -> tuple[int, float, float]:
        """Go from one epoch to the next; the mean of a few times."""
        seconds = spent = 0.0
        batches = iter(self._loader)
        next(batches)
        for _ in range(EPOCHS):
            for _ in range(len(self._loader) - 1):
                next(batches)
            started, began = time.perf_counter(), time.thread_time()
            for _ in batches:  # it has no more
                raise AssertionError
            batches = iter(self._loader)
            next(batches)
            seconds += time.perf_counter() - started
            spent += time.thread_time() - began
        for _ in batches:
            pass
        return size, seconds / EPOCHS, spent / EPOCHS


def rows(pattern: str, seconds: float) -> Iterator[Row]:
    """Measure all chosen rows."""
    for name, length in (("small dataset", SMALL), ("dataset of 1 GB", LARGE)):
        for method in ("fork", "forkserver", "spawn"):
            work = f"first batch, {method}, {name}"
            if re.search(pattern, work):
                dataset = Kilobytes(length)
                starts = {who: partial(Start, who, dataset, method) for who in LOADERS}
                yield race(work, WORKERS, starts, seconds=seconds, unit="ms")
    for name, stay in (("kept", True), ("started anew", False)):
        work = f"between epochs, workers {name}"
        if re.search(pattern, work):
            dataset = Kilobytes(SMALL)
            epochs = {who: partial(Epochs, who, dataset, stay) for who in LOADERS}
            yield race(work, WORKERS, epochs, seconds=seconds, unit="ms")


def tables(measured: Sequence[Row]) -> str:
    """All rows in one table."""
    header = ["ms, two workers", *LOADERS, "torch's time to ours"]
    header += [f"consumer's CPU ms: {who}" for who in LOADERS]
    return table("Starting", header, [_cells(row) for row in measured])


def _cells(row: Row) -> list[str]:
    spent = [row.turns[who].consumer for who in LOADERS]
    return [
        row.work,
        *(row.turns[who].failed or text(row.values(who), "{:,.2f}") for who in LOADERS),
        text(row.ratio("dataporter", "torch"), "{:.2f}x"),
        *(f"{statistics.median(each) * 1e3:,.2f}" if each else "-" for each in spent),
    ]


def main(arguments: Sequence[str] | None = None) -> Run:
    """Measure, print the table, and store the run."""
    asked = parser("Compare the starts of loaders.", SECONDS).parse_args(arguments)
    return execute(rows(asked.rows, asked.seconds), tables, asked.out)


if __name__ == "__main__":
    main()
