"""What is learned, and what learns: drawings of three shapes, and a small network."""

from __future__ import annotations

import random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

SIDE = 16  # pixels


class Drawings(Dataset[tuple[int, torch.Tensor, int]]):
    """Discs, squares and crosses, shifted, mirrored and noised at random at each reading."""

    def __init__(self, length: int) -> None:
        rng = np.random.default_rng(1)
        self._labels = rng.integers(3, size=length)
        self._images = np.stack([_drawing(label, rng) for label in self._labels])

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        # Nothing here knows of dataporter: plain draws from the three global generators.
        shift = random.randint(-2, 2), random.randint(-2, 2)
        image = np.roll(self._images[index], shift, axis=(0, 1))
        image = image + np.random.normal(0, 0.3, image.shape)  # noqa: NPY002  as users do
        tensor = torch.from_numpy(image.astype(np.float32))[None]
        if torch.rand(()) < 0.5:  # noqa: PLR2004  every other one
            tensor = tensor.flip(-1)
        return index, tensor, int(self._labels[index])


def _drawing(label: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw one shape, white on black; shape (SIDE, SIDE)."""
    rows, columns = np.ogrid[:SIDE, :SIDE]
    down, right = (np.abs(axis - rng.integers(6, SIDE - 6)) for axis in (rows, columns))
    radius = rng.integers(3, 6)
    shapes = (
        down**2 + right**2 <= radius**2,
        np.maximum(down, right) <= radius * 0.9,
        (np.minimum(down, right) <= 0) & (np.maximum(down, right) <= radius),
    )
    return shapes[label].astype(np.float64)


def network() -> nn.Module:
    """Make the network, the same one each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * (SIDE // 8) ** 2, 3),
        )
