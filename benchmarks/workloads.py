"""Datasets that loaders are compared on: typical kinds, with invented contents."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A dataset, and how it is to be delivered."""

    name: str
    make: Callable[[int], Any]  # of as many samples
    length: int  # an epoch's, where there is time
    batch_size: int
    workers: int

    @property
    def title(self) -> str:
        """A description for tables."""
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.name}, batches of {self.batch_size}, {workers}"


class TokenWindows:
    """Windows of 256 tokens cut from one long array, as language models are trained on."""

    def __init__(self, windows: int, length: int = 256) -> None:
        rng = np.random.default_rng(0)
        self._tokens = rng.integers(0, 50_000, windows * length, dtype=np.int32)
        self._length = length

    def __len__(self) -> int:
        return len(self._tokens) // self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._length
        return torch.from_numpy(self._tokens[start : start + self._length])


class FiveFields:
    """Dicts of five small fields, two of them cut from tensors at each reading."""

    def __init__(self, length: int) -> None:
        self._features = torch.randn(length, 16)
        self._mask = torch.ones(length, 16, dtype=torch.bool)

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "features": self._features[index],
            "mask": self._mask[index],
            "weight": index / 2,
            "id": index,
            "label": index % 10,
        }


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


class Nothing:
    """A dataset of any length that costs nothing."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


def _workload(name: str, make: Callable[[int], Any], length: int, *rest: int) -> Workload:
    batch_size, workers = rest
    return Workload(name=name, make=make, length=length, batch_size=batch_size, workers=workers)


WORKLOADS = [
    _workload("token windows (256 int32)", TokenWindows, 65_536, 64, 2),
    _workload("dicts of five fields", FiveFields, 65_536, 128, 2),
    _workload("images of 3x224x224 floats", Images, 2_560, 64, 2),
    _workload("1 ms of NumPy work a sample", Decoded, 2_048, 32, 2),
    _workload("one slow sample in 64", Skewed, 2_048, 4, 4),
    _workload("one slow sample in 64", Skewed, 2_048, 8, 4),
]
