"""One rank of the training: `python -m dataporter.tools.demo.training RANK RUN`, RUN as JSON.

A small network learns to tell drawings apart, which are augmented at random at each reading. Each
rank logs its share of every step, every W-th sample; a step counts once all ranks have logged it.

Sums of floats depend on their order, and so on how samples are split among ranks. Here the loss and
gradient of each sample are computed separately and added as integers (multiples of 2^-40), whose
sum is the same in any order. So a step gives the same bits on any number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.system.processes import die_with

EPOCHS = 3
STEP_SAMPLES = 48  # of all ranks together: 2 ranks of 24, or 3 of 16, make the same steps
STEPS_PER_CHECKPOINT = 6
PARENT = "DATAPORTER_PARENT"  # a variable with the process id of the command

SIDE = 16  # pixels
_ONE = 2.0**40  # the integer that stands for 1
_LEARNING_RATE = 0.3
_LONG = 600.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its data, its processes, and the files that it writes."""

    folder: str  # for its logs
    checkpoint: str
    world_size: int
    workers: int
    seed: int
    samples: int
    loader_options: dict[str, Any] = field(default_factory=dict)
    waits_after: int | None = None  # steps; then the ranks wait to be killed

    @property
    def batch_size(self) -> int:
        """Samples of one rank in a step."""
        return STEP_SAMPLES // self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps that all ranks make together."""
        return self.samples // STEP_SAMPLES

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return EPOCHS * self.steps_per_epoch


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of all ranks."""

    step: int  # from 1
    epoch: int
    ids: tuple[int, ...]  # of all ranks' samples, in the order of the epoch
    inputs: tuple[str, ...]  # SHA-256 of each sample's augmented image
    losses: tuple[str, ...]  # one for each rank, by float.hex(): every bit
    wait_ms: float  # of the slowest rank; after a load, since load_state_dict()

    @property
    def loss(self) -> float:
        """The loss that rank 0 logged."""
        return float.fromhex(self.losses[0])


def log_of(folder: Path, rank: int) -> Path:
    """The file that a rank logs its steps to."""
    return folder / f"rank{rank}.jsonl"


def read_steps(folder: Path, world_size: int) -> list[Step]:
    """Read the steps that all ranks have logged."""
    shares = [_lines(log_of(folder, rank)) for rank in range(world_size)]
    return [_joined(lines) for lines in zip(*shares, strict=False)]


def _lines(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    # A kill may have cut the last one short.
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _joined(shares: Sequence[dict[str, Any]]) -> Step:
    return Step(
        step=shares[0]["step"],
        epoch=shares[0]["epoch"],
        ids=_interleaved([share["ids"] for share in shares]),
        inputs=_interleaved([share["inputs"] for share in shares]),
        losses=tuple(share["loss"] for share in shares),
        wait_ms=max(share["wait_ms"] for share in shares),
    )


def _interleaved(shares: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Put the ranks' shares back into the order of the epoch.

    >>> _interleaved([[0, 2], [1, 3]])
    (0, 1, 2, 3)
    """
    return tuple(value for row in zip(*shares, strict=True) for value in row)


def train(run: Run) -> None:
    """Train to the end, from the checkpoint if there is one."""
    model = network()
    loader = ResumableDataLoader(
        Drawings(run.samples),
        run.batch_size,
        shuffle=True,
        num_workers=run.workers,
        seed=run.seed,
        **run.loader_options,
    )
    checkpoint, step = Path(run.checkpoint), 0
    asked = time.perf_counter()
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        step = saved["step"]
        asked = time.perf_counter()
        loader.load_state_dict(saved["loader"])
    dist.barrier()  # all have read it before rank 0 writes another

    with log_of(Path(run.folder), dist.get_rank()).open("a", buffering=1) as log:  # whole lines
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)  # a loaded position in this epoch is kept
            for ids, images, labels in loader:
                waited = time.perf_counter() - asked
                step += 1
                made = {
                    "step": step,
                    "epoch": epoch,
                    "ids": ids.tolist(),
                    "inputs": [hashlib.sha256(i.numpy().tobytes()).hexdigest() for i in images],
                    "loss": learn(model, images, labels).hex(),
                    "wait_ms": waited * 1000,
                }
                log.write(json.dumps(made) + "\n")
                if step == run.waits_after:
                    time.sleep(_LONG)
                if step % STEPS_PER_CHECKPOINT == 0 or step == run.steps:
                    dist.barrier()  # all steps of a checkpoint are in the logs of all ranks
                    if dist.get_rank() == 0:
                        save(checkpoint, step, model=model, loader=loader)
                asked = time.perf_counter()


def save(checkpoint: Path, step: int, **parts: Any) -> None:
    """Write a checkpoint; a kill meanwhile leaves the previous one complete."""
    state = {"step": step, **{name: part.state_dict() for name, part in parts.items()}}
    torch.save(state, checkpoint.with_suffix(".part"))
    checkpoint.with_suffix(".part").replace(checkpoint)


def learn(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Make one step together with the other ranks, and return the loss over all samples."""
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    total = torch.zeros(1 + sum(sizes), dtype=torch.int64)
    for image, label in zip(images, labels, strict=True):
        # A copy has the same memory layout on every rank.
        loss = nn.functional.cross_entropy(model(image[None].clone()), label[None])
        gradients = torch.autograd.grad(loss, parameters)
        values = torch.cat([loss.detach().view(1), *(each.flatten() for each in gradients)])
        total += (values.double() * _ONE).round().long()
    dist.all_reduce(total)
    mean = total.double() / (_ONE * STEP_SAMPLES)
    with torch.no_grad():
        for parameter, part in zip(parameters, mean[1:].float().split(sizes), strict=True):
            parameter.sub_(_LEARNING_RATE * part.view_as(parameter))
    return mean[0].item()


def main(rank: int, run: Run) -> None:
    """Join the other ranks, and train."""
    die_with(int(os.environ[PARENT]))  # the command
    torch.set_num_threads(1)
    store = (Path(run.folder) / "store").absolute().as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=run.world_size)
    train(run)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Run(**json.loads(sys.argv[2])))
