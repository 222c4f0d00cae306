"""The examples' training on two ranks as one process makes it, which averages the gradients.

For two ranks that is the same arithmetic, to the last bit. So it is what a run on two real
ranks, killed or not, has to log.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader

SAMPLES = 499
Step = dict[str, Any]


def uninterrupted(make_model: Callable[[], nn.Module]) -> list[list[Step]]:
    """The steps of each rank."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    features = torch.randn(SAMPLES, 8)
    dataset = TensorDataset(torch.arange(SAMPLES), features, features.sum(1, keepdim=True))
    loaders = [
        ResumableDataLoader(dataset, 8, shuffle=True, seed=3, rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    steps: list[list[Step]] = [[], []]
    for number, batches in enumerate(zip(*loaders, strict=True), start=1):
        optimizer.zero_grad()
        for rank, (ids, inputs, targets) in enumerate(batches):
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / 2).backward()
            step = {"epoch": 0, "step": number, "loss": loss.item(), "ids": ids.tolist()}
            steps[rank].append(step)
        optimizer.step()
    return steps


def steps_of(folder: Path, rank: int) -> list[Step]:
    """What a rank has logged."""
    log = folder / f"rank{rank}.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def before_and_after(steps: list[Step]) -> tuple[list[Step], list[Step]]:
    """The steps of a rank that was started again, split where it begins to repeat some."""
    numbers = [step["step"] for step in steps]
    again = next(place for place in range(1, len(steps)) if numbers[place] <= numbers[place - 1])
    return steps[:again], steps[again:]


def kept(steps: list[Step]) -> list[int]:
    """The ids of the steps that led to the end: those that no later start has made again."""
    ids: list[int] = []
    for place, step in enumerate(steps):
        if all(later["step"] > step["step"] for later in steps[place + 1 :]):
            ids += step["ids"]
    return ids
