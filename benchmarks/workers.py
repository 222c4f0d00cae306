"""Delivery by worker processes, against torch's loader and torchdata's, in one run."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from measure import interleaved, table
from torch.utils.data import DataLoader
from workloads import WORKLOADS, TokenWindows

from dataporter import ResumableDataLoader

ROUNDS = 5


def main() -> None:
    """Print both tables."""
    warnings.filterwarnings("ignore")  # torch counts cores, torchdata uses what torch deprecated
    print(throughput())
    print(first_batch())


TARGETS = [6.0, 4.0, 4.0, 1.6, 2.5, 2.5]


def throughput() -> str:
    """Whole epochs in turns, workers kept from epoch to epoch."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  warns at import

    rows = []
    for workload, target in zip(WORKLOADS, TARGETS, strict=True):
        dataset, batch_size = workload.make(workload.length), workload.batch_size
        options: dict[str, Any] = {"num_workers": workload.workers, "persistent_workers": True}
        loaders: dict[str, Any] = {
            "torch": DataLoader(dataset, batch_size, shuffle=True, **options),
            "torchdata": StatefulDataLoader(dataset, batch_size, shuffle=True, **options),
            "dataporter": ResumableDataLoader(dataset, batch_size, shuffle=True, seed=1, **options),
            "inline": ResumableDataLoader(dataset, batch_size, shuffle=True, seed=1),
        }
        if workload.workers > 2:
            del loaders["inline"]  # minutes of sleep
        seconds = interleaved({who: partial(_drain, it) for who, it in loaders.items()}, ROUNDS)
        speeds = {who: len(dataset) / spent for who, spent in seconds.items()}
        rows.append(
            (
                workload.title,
                *(f"{speeds[who]:,.0f}" for who in ("torch", "torchdata", "dataporter")),
                f"{speeds['inline']:,.0f}" if "inline" in speeds else "-",
                f"{speeds['dataporter'] / speeds['torch']:.1f}x",
                f"{target:.1f}x",
            )
        )
    header = ("samples/s", "torch", "torchdata", "dataporter", "inline", "to torch", "target")
    return table("Workers, on 2 cores", header, rows)


def first_batch() -> str:
    """From iter() to the first batch, workers started anew each time."""
    dataset = TokenWindows(65_536)
    loaders: dict[str, Any] = {
        "torch": DataLoader(dataset, 64, shuffle=True, num_workers=2),  # type: ignore[arg-type]
        "dataporter": ResumableDataLoader(dataset, 64, shuffle=True, num_workers=2, seed=1),
    }
    seconds = interleaved({who: partial(_first, it) for who, it in loaders.items()}, 15)
    rows = [(who, f"{spent * 1e3:.1f} ms") for who, spent in seconds.items()]
    ratio = seconds["dataporter"] / seconds["torch"]
    return table(f"Time to the first batch: {ratio:.2f}x torch's", ("loader", "time"), rows)


def _drain(loader: Any) -> None:
    for _ in loader:
        pass


def _first(loader: Any) -> None:
    iterator = iter(loader)
    next(iterator)


if __name__ == "__main__":
    main()
