"""Views: what mixtures, packing and batches by length cost beside what they are made of.

    python benchmarks/views.py [--workers 0,2] [--rounds 5]

A mixture of four parts is compared with its parts alone, each weighted by its share: 1.0 is as
fast as reading the parts one after the other. Packed documents are compared with windows of a
token file, which are as long. The order's cost is that of an index, in arrays of 8,192. Without
workers, and for orders, CPU time is measured: the ratios hold on a busy machine too.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from measure import table
from torch.utils.data import Dataset, TensorDataset

from dataporter.law import Order, ShuffledOrder
from dataporter.law.tracks import TracksOrder
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.shards import dataset as dataset_module
from dataporter.shards.dataset import ShardedDataset
from dataporter.views import LengthBatches, Mixture
from dataporter.views.mixture_order import MixtureOrder, Part
from dataporter.views.segments import Segment

SHARES = (0.4, 0.3, 0.2, 0.1)
LENGTH = 2048  # tokens of a packed sample
BATCH = 64
_WARM, _BATCHES = 30, 250
_REPEATS = 20  # of an order's arrays
READ = 1024  # positions of which a porter asks at a time


class Rows(Dataset[Any]):
    """Arrays that Python makes one by one."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        return np.full(256, index, np.float32)


def seconds_of(data: Any, workers: int, batch_size: int = BATCH) -> float:
    """Take some batches, and return the seconds for one."""
    loader = ResumableDataLoader(data, batch_size, shuffle=True, seed=1, num_workers=workers)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for _ in range(_WARM):
        next(batches)
    clock = time.perf_counter if workers else time.process_time
    begun = clock()
    for _ in range(_BATCHES):
        next(batches)
    return (clock() - begun) / _BATCHES


def texts_in(folder: Path) -> ShardedDataset:
    """Write texts of 500 bytes into a Parquet file."""
    folder.mkdir(parents=True)
    texts = pa.table({"text": [f"{number:0500}" for number in range(20_000)]})
    pq.write_table(texts, folder / "texts.parquet", row_group_size=500)
    return ShardedDataset(folder, cache=folder / "cache")


def mixtures(folder: Path, workers: list[int], rounds: int) -> str:
    """Mixtures beside their parts."""
    names = map(str, itertools.count())
    kinds: dict[str, Callable[[], Any]] = {
        "arrays made in Python": Rows,
        "dicts in a list": lambda: [{"number": number} for number in range(100_000)],
        "texts in Parquet": lambda: texts_in(folder / next(names)),
        "tensors": lambda: TensorDataset(torch.randn(100_000, 64)),
        "packed documents": lambda: ShardedDataset(folder / "arrow").packed(LENGTH),
        "packed, with boundaries": lambda: ShardedDataset(folder / "arrow").packed(
            LENGTH, boundaries=True
        ),
    }
    rows = []
    for title, make in kinds.items():
        parts = [make() for _ in SHARES]
        mixture = Mixture(
            {str(at): pair for at, pair in enumerate(zip(parts, SHARES, strict=True))}
        )
        for count in workers:
            ratios, speeds = [], []
            for _ in range(rounds):
                alone = [seconds_of(part, count) for part in parts]
                mixed = seconds_of(mixture, count)
                expected = sum(np.multiply(alone, SHARES))
                ratios.append(expected / mixed)
                speeds.append(BATCH / mixed)
            cells = f"{statistics.median(speeds):,.0f}", f"{statistics.median(ratios):.2f}"
            rows.append([title, str(count), *cells])
    return table("Mixtures of four parts", ["", "workers", "samples/s", "of the parts"], rows)


def write_documents(folder: Path) -> None:
    """Write documents of tokens as Arrow files, and the same tokens as a file."""
    random = np.random.default_rng(0)
    (folder / "arrow").mkdir()
    flat = []
    for number in range(4):
        lengths = random.lognormal(6, 1.2, 12_000).astype(np.int64) + 1
        tokens = random.integers(0, 50_000, lengths.sum()).astype(np.uint16)
        ends = pa.array(np.append(0, np.cumsum(lengths)))
        column = pa.LargeListArray.from_arrays(ends, pa.array(tokens))
        documents = pa.table({"tokens": column})
        with (
            pa.OSFile(str(folder / "arrow" / f"{number}.arrow"), "wb") as file,
            pa.ipc.new_file(file, documents.schema) as writer,
        ):
            writer.write_table(documents, max_chunksize=2000)
        flat.append(tokens)
    np.concatenate(flat).tofile(folder / "tokens.bin")


def packing(folder: Path, workers: list[int], rounds: int) -> str:
    """Packed documents beside windows of a token file."""
    corpus = ShardedDataset(folder / "arrow")
    views = {
        "windows": corpus.packed(LENGTH),
        "windows with boundaries": corpus.packed(LENGTH, boundaries=True),
        "best fit": corpus.packed(LENGTH, kind="best-fit"),
    }
    ready = ShardedDataset(folder / "tokens.bin", dtype="uint16", window=LENGTH)
    rows = []
    for title, view in views.items():
        for count in workers:
            ratios = [
                seconds_of(ready, count, 32) / seconds_of(view, count, 32) for _ in range(rounds)
            ]
            rows.append([title, str(count), f"{statistics.median(ratios):.2f}"])
    return table("Packed documents", ["", "workers", "of windows of a token file"], rows)


def orders(folder: Path, rounds: int) -> str:
    """Nanoseconds for an index of each order."""
    four, fifty = (
        {str(at): (range(100_000), SHARES[at % len(SHARES)]) for at in range(count)}
        for count in (4, 50)
    )
    lengths = np.random.default_rng(0).lognormal(5.5, 1.0, 300_000).clip(8, 4096).astype(np.int64)
    packed = ShardedDataset(folder / "arrow").packed(LENGTH)
    asked: dict[str, Any] = {"shuffle": True, "seed": 1, "step_size": BATCH, "world_size": 1}
    batches = LengthBatches(lengths, max_tokens=16_384)
    found: dict[str, Order] = {
        "shuffled": ShuffledOrder(1_000_000, seed=1),
        "mixture of four": Mixture(four, epoch=1_000_000).epoch_order(**asked),
        "mixture of fifty": Mixture(fifty, epoch=1_000_000).epoch_order(**asked),
        "packed windows in 256 tracks": replace(packed.epoch_order(**asked), tracks=256),
        "batches by length, a sample": batches.epoch_order(**asked),
    }
    rows = []
    for title, order in found.items():
        positions = np.arange(min(8192, order.length))
        per_position = len(lengths) / len(batches) if order.of_batches else 1
        times = []
        for _ in range(rounds + 1):  # the first one sets up the epoch
            begun = time.process_time()
            for _ in range(_REPEATS):
                order.indices(0, positions)
            each = (time.process_time() - begun) / _REPEATS
            times.append(each / len(positions) / per_position)
        rows.append([title, f"{1e9 * statistics.median(times[1:]):.0f}"])
    return table("Orders", ["", "ns an index"], rows)


def reads(rounds: int) -> str:
    """Nanoseconds for a position of which a porter asks what is read from its leaf."""
    rows, positions = [], np.arange(READ)
    for count in (4, 50):
        parts = {
            str(at): Part(TracksOrder(np.full(800, 125), 128, leaf=str(at)), 100_000)
            for at in range(count)
        }
        order = MixtureOrder(parts, (Segment(0, dict.fromkeys(parts, 1)),), 1_000_000)
        times = []
        for _ in range(rounds + 1):  # the first one sets up the epoch
            begun = time.process_time()
            for _ in range(_REPEATS):
                order.reads("0", 0, positions)
            times.append((time.process_time() - begun) / _REPEATS / len(positions))
        rows.append([f"a leaf of {count}", f"{1e9 * statistics.median(times[1:]):.0f}"])
    return table("Blocks that a mixture reads", ["", "ns a position"], rows)


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--workers", default="0,2", help="numbers of workers")
    options.add_argument("--rounds", type=int, default=5)
    asked = options.parse_args()
    workers = [int(count) for count in asked.workers.split(",")]
    dataset_module.SMALL = 0  # tracks, as for large data
    with tempfile.TemporaryDirectory() as folder:
        write_documents(Path(folder))
        print(mixtures(Path(folder), workers, asked.rounds))
        print(packing(Path(folder), workers, asked.rounds))
        print(orders(Path(folder), asked.rounds))
        print(reads(asked.rounds))


if __name__ == "__main__":
    main()
