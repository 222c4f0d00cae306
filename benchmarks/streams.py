"""Iterables with a state, against torchdata's loader, in one run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import interleaved, table
from torch.utils.data import IterableDataset, get_worker_info

from dataporter.stateful_dataloader import StatefulDataLoader

ROUNDS = 5


class Rows(IterableDataset[dict[str, Any]]):
    """A stream of small dicts, shared among workers, with a state of `extra` bytes beside."""

    def __init__(self, length: int, extra: int = 0) -> None:
        self._features = torch.randn(4096, 16)
        self._length = length
        self._extra = np.zeros(extra, np.uint8)
        self._next = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        step, first = (1, 0) if info is None else (info.num_workers, info.id)
        for number in range(first + self._next * step, self._length, step):
            self._next += 1
            yield {"features": self._features[number % 4096], "id": number, "weight": number / 2}
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        if not len(self._extra):
            return {"next": self._next}
        self._extra[self._next % len(self._extra)] += 1
        return {"next": self._next, "extra": self._extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next, self._extra = state["next"], state.get("extra", self._extra)


def main() -> None:
    """Print the table."""
    warnings.filterwarnings("ignore")  # torchdata uses what torch deprecated
    print(streams())


WORKLOADS = [
    ("small dicts, batches of 64, no workers", 16_384, 0, 0, "1.0x"),
    ("small dicts, batches of 64, 2 workers", 65_536, 0, 2, "3.0x"),
    ("the same with a state of 1 MB, no workers", 16_384, 2**20, 0, "-"),
    ("the same with a state of 1 MB, 2 workers", 65_536, 2**20, 2, "-"),
]


def streams() -> str:
    """Whole epochs in turns, workers kept from epoch to epoch."""
    from torchdata.stateful_dataloader import (  # noqa: PLC0415  warns at import
        StatefulDataLoader as Theirs,
    )

    rows = []
    for name, length, extra, workers, target in WORKLOADS:
        dataset = Rows(length, extra)
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        loaders: dict[str, Any] = {
            "torchdata": Theirs(dataset, 64, **options),
            "dataporter": StatefulDataLoader(dataset, 64, **options),
        }
        seconds = interleaved({who: partial(_drain, it) for who, it in loaders.items()}, ROUNDS)
        batches = length / 64
        rows.append(
            (
                name,
                *(f"{length / seconds[who]:,.0f}" for who in loaders),
                f"{seconds['torchdata'] / seconds['dataporter']:.1f}x",
                target,
                f"{seconds['dataporter'] / batches * 1e6:,.0f} us",
            )
        )
    header = ("samples/s", "torchdata", "dataporter", "ratio", "target", "our time a batch")
    return table("Streams with a state, snapshots at every step", header, rows)


def _drain(loader: Any) -> None:
    for _ in loader:
        pass


if __name__ == "__main__":
    main()
