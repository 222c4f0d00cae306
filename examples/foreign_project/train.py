"""Classify rising and falling chirps: an ordinary training script.

    python train.py --steps 40

It goes on from `checkpoint.pt` where there is one.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from dataporter import ResumableDataLoader

CHECKPOINT = Path("checkpoint.pt")


class Chirps(Dataset[dict[str, torch.Tensor]]):
    """Sounds whose pitch rises or falls, cropped at random, with noise."""

    def __init__(self, clips: int = 1000, length: int = 512) -> None:
        self.clips = clips
        self.length = length

    def __len__(self) -> int:
        return self.clips

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rises = index % 2
        low, high = 20 + index % 17, 60 + index % 29
        pitch = np.linspace(low, high, 2 * self.length)
        sound = np.sin(np.cumsum(pitch if rises else pitch[::-1]) / self.length)
        start = random.randrange(self.length)
        sound = sound[start : start + self.length]
        sound = sound + np.random.normal(0, 0.2, self.length)
        return {
            "sound": torch.from_numpy(sound).float() * (0.5 + torch.rand(())),
            "rises": torch.tensor(rises),
        }


def make_loader() -> ResumableDataLoader[dict[str, torch.Tensor]]:
    """Make the training loader."""
    return ResumableDataLoader(Chirps(), batch_size=25, shuffle=True, num_workers=2, seed=4)


def make_model() -> nn.Module:
    """Make a small convolutional network."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, -1)),
        nn.Conv1d(1, 8, 33, stride=8),
        nn.ReLU(),
        nn.Conv1d(8, 16, 9, stride=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(2),
    )


def train(steps: int) -> None:
    """Train for some steps, over as many epochs as needed."""
    loader, model = make_loader(), make_model()
    model(torch.zeros(1, 512))  # the lazy layer learns its size
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"]["train"])
        print(f"going on in epoch {loader.epoch}, after {loader.samples_processed} clips")

    step = 0
    while step < steps:
        for batch in loader:
            step += 1
            loss = nn.functional.cross_entropy(model(batch["sound"]), batch["rises"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {loader.epoch}, step {step}: loss {loss.item():.3f}")
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": {"train": loader.state_dict()},
                }
                torch.save(state, CHECKPOINT)
            if step == steps:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    train(parser.parse_args().steps)
