"""Workers on a Ray cluster beside worker processes and Ray Data, on one machine, in one run.

Needs Ray: `python benchmarks/ray_engine.py [--workers 2] [--batches 200] [--out FILE.json]`. The
cluster is started here, with as many CPUs as there are workers. Images of 150 kB take about 1 ms of
work each; batches of one number show what a batch costs beside its work.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from contenders import installed
from measure import Row, Run, table, timed_turns
from workloads import Computed

from dataporter import ResumableDataLoader
from dataporter.system.processes import usable_cores

ROUNDS = 5
BATCH_SIZE = 32
SIDE = 224  # pixels, in 3 channels: 150,528 bytes


class WorkedImages:
    """Images of 150 kB, each after a millisecond of work."""

    def __init__(self, length: int, milliseconds: float = 1.0) -> None:
        self._length = length
        self._images = np.random.default_rng(0).integers(0, 256, (64, 3, SIDE, SIDE), np.uint8)
        self._work = Computed(length, milliseconds)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        first = int(self._work[index][0])
        return torch.from_numpy(self._images[index % 64] ^ np.uint8(first & 1))


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Print the tables, and store their rows."""
    parser = argparse.ArgumentParser(description="Compare workers on Ray with worker processes.")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--batches", type=int, default=200, help="in a turn")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="a file for the run, as JSON")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")  # torch counts cores
    import ray  # noqa: PLC0415  may be missing

    run = Run(versions=installed() | {"ray": ray.__version__}, machine=machine.describe())
    print(machine.line(run.machine))
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # not a cluster that somebody else has started
        ray.init(
            num_cpus=given.workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        for measure in (images, overhead):
            text, row = measure(given.workers, given.batches, given.rounds)
            print(text, flush=True)
            run.rows.append(row)
        ray.shutdown()
    if given.out is not None:
        run.write(given.out)
    return run.rows


def images(workers: int, batches: int, rounds: int) -> tuple[str, Row]:
    """Deliver images that take work; samples a second."""
    dataset = WorkedImages(batches * BATCH_SIZE)
    turns = timed_turns(
        {
            "processes": _local(dataset, BATCH_SIZE, workers),
            "ray": _on_ray(dataset, BATCH_SIZE, workers),
            "ray data": _by_ray_data(dataset, workers),
        },
        rounds,
        amount=batches * BATCH_SIZE,
    )
    row = Row(work="images of 150 kB, 1 ms", workers=workers, unit="samples/s", turns=turns)
    rows = [
        [who, str(_values(row, who, "{:,.0f}")), _ratio(row, who, "processes")] for who in row.turns
    ]
    title = f"Images of 150 kB with 1 ms of work, batches of {BATCH_SIZE}, {workers} workers"
    return table(title, ["loader", "samples/s", "to processes"], rows), row


def overhead(workers: int, batches: int, rounds: int) -> tuple[str, Row]:
    """Deliver batches of one number; microseconds for each."""
    dataset = range(batches * 5)
    turns = timed_turns(
        {"processes": _local(dataset, 1, workers), "ray": _on_ray(dataset, 1, workers)},
        rounds,
        amount=len(dataset),
    )
    row = Row(work="batches of one number", workers=workers, unit="batches/s", turns=turns)
    rows = [
        [who, f"{statistics.median(each.seconds) / len(dataset) * 1e6:,.0f}"]
        for who, each in turns.items()
    ]
    return table("One number a batch", ["loader", "us a batch"], rows), row


def _values(row: Row, who: str, form: str) -> str:
    found = row.values(who)
    return "-" if found is None else found.text(form)


def _ratio(row: Row, who: str, to: str) -> str:
    found = row.ratio(who, to)
    return "-" if found is None else found.text("{:.2f}x")


def _local(dataset: Any, batch_size: int, workers: int) -> Callable[[], object]:
    loader: ResumableDataLoader[Any] = ResumableDataLoader(
        dataset, batch_size, shuffle=True, seed=0, num_workers=workers, persistent_workers=True
    )
    return lambda: _consume(loader)


def _on_ray(dataset: Any, batch_size: int, workers: int) -> Callable[[], object]:
    loader: ResumableDataLoader[Any] = ResumableDataLoader(
        dataset,
        batch_size,
        shuffle=True,
        seed=0,
        num_workers=workers,
        persistent_workers=True,
        engine="ray",
        ray_options={"num_cpus": 0},  # between turns they would keep CPUs that Ray Data waits for
    )
    return lambda: _consume(loader)


def _by_ray_data(dataset: WorkedImages, workers: int) -> Callable[[], object]:
    import ray  # noqa: PLC0415  may be missing

    stored = ray.put(dataset)

    def work(rows: dict[str, Any]) -> dict[str, Any]:
        own = ray.get(stored)
        return {"image": np.stack([own[int(index)].numpy() for index in rows["id"]])}

    def consume() -> None:
        data = ray.data.range(len(dataset), override_num_blocks=4 * workers)
        made = data.map_batches(work, batch_size=BATCH_SIZE, num_cpus=1)
        for batch in made.iter_torch_batches(batch_size=BATCH_SIZE, prefetch_batches=2 * workers):
            batch["image"].shape  # noqa: B018  it is there

    return consume


def _consume(loader: Any) -> None:
    for batch in loader:
        batch.shape  # noqa: B018  it is there


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - start:.0f} s")
