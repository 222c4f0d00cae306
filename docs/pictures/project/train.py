"""The project of the recordings: its dataset has a hidden fault, a slow disk and one slow photo."""

import time

import numpy as np
import torch
from torch.utils.data import Dataset

from dataporter import ResumableDataLoader

READ = 0.002  # seconds, of a network drive
SLOW_PHOTO = 1234


class Photos(Dataset):
    """Photos, cropped at random by a generator that no checkpoint holds."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> torch.Tensor:
        """Read a photo and crop it."""
        time.sleep(READ * (40 if index == SLOW_PHOTO else 1))
        left = self.rng.integers(32)
        photo = np.full((3, 64, 96), index, np.float32) + np.arange(96, dtype=np.float32)
        return torch.from_numpy(photo[:, :, left : left + 64].copy())


def make_loader() -> ResumableDataLoader:
    """Make the training loader."""
    return ResumableDataLoader(Photos(), batch_size=32, shuffle=True, num_workers=2, seed=4)
