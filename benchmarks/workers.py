"""Delivery by worker processes, against torch's loader and torchdata's, in one run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import interleaved, table
from throughput import FiveFields, TokenWindows
from torch.utils.data import DataLoader

from dataporter import ResumableDataLoader

ROUNDS = 5


class Images:
    """Ready 3x224x224 float images: nothing to do but to move them."""

    def __init__(self, length: int, kept: int = 64) -> None:
        self._images = torch.randn(kept, 3, 224, 224)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._images[index % len(self._images)]


class Decoded:
    """About a millisecond of NumPy work a sample: bytes to an augmented 3x224x224 image."""

    def __init__(self, length: int, kept: int = 64) -> None:
        rng = np.random.default_rng(0)
        self._encoded = rng.integers(0, 256, (kept, 256, 256, 3), dtype=np.uint8)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        encoded = self._encoded[index % len(self._encoded)]
        top, left = index % 32, index // 32 % 32
        image = encoded[top : top + 224, left : left + 224, :: -1 if index % 2 else 1]
        image = image.astype(np.float32) / 255
        mean, contrast = image.mean(), np.float32(0.8 + index % 5 / 10)
        image = np.clip((image - mean) * contrast + mean, 0, 1) ** np.float32(0.45)
        image = (image - np.float32(0.45)) / np.float32(0.225)
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


class Skewed:
    """One sample in 64 takes 50 ms, as a large file among small ones does."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.05 if index % 64 == 0 else 0.0001)
        return torch.zeros(16)


def main() -> None:
    """Print both tables."""
    warnings.filterwarnings("ignore")  # torch counts cores, torchdata uses what torch deprecated
    print(throughput())
    print(first_batch())


WORKLOADS: list[tuple[str, Callable[[], Any], int, int, float]] = [
    ("token windows (256 int32), batches of 64", partial(TokenWindows, 65_536), 64, 2, 6.0),
    ("dicts of five fields, batches of 128", partial(FiveFields, 65_536), 128, 2, 4.0),
    ("images of 3x224x224 floats, batches of 64", partial(Images, 2_560), 64, 2, 4.0),
    ("1 ms of NumPy work a sample, batches of 32", partial(Decoded, 2_048), 32, 2, 1.6),
    ("one slow sample in 64, batches of 4, 4 workers", partial(Skewed, 2_048), 4, 4, 2.5),
    ("one slow sample in 64, batches of 8, 4 workers", partial(Skewed, 2_048), 8, 4, 2.5),
]


def throughput() -> str:
    """Whole epochs in turns, workers kept from epoch to epoch."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  warns at import

    rows = []
    for name, make, batch_size, workers, target in WORKLOADS:
        dataset = make()
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True}
        loaders: dict[str, Any] = {
            "torch": DataLoader(dataset, batch_size, shuffle=True, **options),
            "torchdata": StatefulDataLoader(dataset, batch_size, shuffle=True, **options),
            "dataporter": ResumableDataLoader(dataset, batch_size, shuffle=True, seed=1, **options),
            "inline": ResumableDataLoader(dataset, batch_size, shuffle=True, seed=1),
        }
        if name.startswith("one slow"):
            del loaders["inline"]  # minutes of sleep
        seconds = interleaved({who: partial(_drain, it) for who, it in loaders.items()}, ROUNDS)
        speeds = {who: len(dataset) / spent for who, spent in seconds.items()}
        rows.append(
            (
                name,
                *(f"{speeds[who]:,.0f}" for who in ("torch", "torchdata", "dataporter")),
                f"{speeds['inline']:,.0f}" if "inline" in speeds else "-",
                f"{speeds['dataporter'] / speeds['torch']:.1f}x",
                f"{target:.1f}x",
            )
        )
    header = ("samples/s", "torch", "torchdata", "dataporter", "inline", "to torch", "target")
    return table("Workers (2 on 2 cores where not said otherwise)", header, rows)


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
