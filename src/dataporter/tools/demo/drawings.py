"""The data and the model: drawings of three shapes, and a small network."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

SIDE = 16  # pixels


class Drawings(Dataset[tuple[int, torch.Tensor, int]]):
    """Discs, squares and crosses, shifted, mirrored and noised at random at each reading."""

    def __init__(self, length: int) -> None:
        self._labels = np.random.default_rng(1).integers(3, size=length)
        down, right = (np.abs(axis - SIDE / 2) for axis in np.ogrid[:SIDE, :SIDE])
        self._shapes = (
            down**2 + right**2 <= 16,  # noqa: PLR2004  a disc of radius 4
            np.maximum(down, right) <= 3,  # noqa: PLR2004  a square
            np.minimum(down, right) <= 0,  # a cross
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        # As in any dataset: plain draws from the three global generators.
        label = int(self._labels[index])
        shift = random.randint(-4, 4), random.randint(-4, 4)
        image = np.roll(self._shapes[label], shift, axis=(0, 1))
        image = image + np.random.normal(0, 0.5, image.shape)  # noqa: NPY002  as users do
        tensor = torch.from_numpy(image.astype(np.float32))
        return index, tensor.flip(-1) if torch.rand(()) < 0.5 else tensor, label  # noqa: PLR2004


def network() -> nn.Module:
    """Make the network, the same one each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 64), nn.ReLU(), nn.Linear(64, 3))
