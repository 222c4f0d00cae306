"""The example of Ray Train: a worker is killed, and the run restored from Ray's checkpoint."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from guides import blocks, lines_that_an_example_lacks
from launching import EXAMPLES, RAY, finished, started
from torch import nn
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader

SAMPLES = 499
KILLED_AT = 13


def steps_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def uninterrupted() -> list[list[dict[str, Any]]]:
    """The steps of both workers as one process makes them, which averages their gradients."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    features = torch.randn(SAMPLES, 8)
    dataset = TensorDataset(torch.arange(SAMPLES), features, features.sum(1, keepdim=True))
    loaders = [
        ResumableDataLoader(dataset, 8, shuffle=True, seed=3, rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    steps: list[list[dict[str, Any]]] = [[], []]
    for step, batches in enumerate(zip(*loaders, strict=True), start=1):
        optimizer.zero_grad()
        for rank, (ids, inputs, targets) in enumerate(batches):
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / 2).backward()
            made = {"epoch": 0, "step": step, "loss": loss.item(), "ids": ids.tolist()}
            steps[rank].append(made)
        optimizer.step()
    return steps


def test_a_killed_worker_changes_neither_samples_nor_losses(tmp_path):
    command = (EXAMPLES / "ray_train.py", "--folder", tmp_path, "--kill-after", KILLED_AT)
    with started(*command, **RAY) as process:
        finished(process)
    ids: list[int] = []
    for rank, reference in enumerate(uninterrupted()):
        steps = steps_of(tmp_path / f"rank{rank}.jsonl")
        first, second = steps[:KILLED_AT], steps[KILLED_AT:]
        resumed_at = second[0]["step"] - 1
        assert resumed_at in {5, 10}  # the second checkpoint may not have reached Ray
        assert first == reference[:KILLED_AT]
        assert second == reference[resumed_at:]  # losses included, bit by bit
        ids += [index for step in first[:resumed_at] + second for index in step["ids"]]
    # 499 samples on two workers: one comes twice, so that both make the same steps.
    assert sorted(Counter(ids).values()) == [1] * (SAMPLES - 1) + [2]


def test_the_guide_shows_lines_of_the_example():
    first, *_ = blocks("ray.md", "python")
    assert lines_that_an_example_lacks("ray_train.py", first) == []
