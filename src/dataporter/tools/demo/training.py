"""One rank of the training: `python -m dataporter.tools.demo.training RANK RUN`, RUN as JSON.

Sums of floats depend on their order, and so on how samples are split among ranks. Here each
sample's loss and gradient are computed by themselves and added up as whole numbers of 2^-40,
whose sum is the same in any order. So a step gives the same bits on any number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.tools.child_processes import die_with_command
from dataporter.tools.demo.drawings import Drawings, network
from dataporter.tools.demo.steps import log_of

EPOCHS = 3
STEP_SAMPLES = 48  # of all ranks together: 2 ranks of 24, or 3 of 16, make the same steps
STEPS_PER_CHECKPOINT = 6

_ONE = 2.0**40  # as a whole number


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one run is split among processes, and where it writes."""

    folder: str  # for its logs
    checkpoint: str
    world_size: int
    workers: int
    seed: int
    samples: int
    loader_options: dict[str, Any] = field(default_factory=dict)

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


def train(run: Run) -> None:
    """Train to the end, from the checkpoint if there is one."""
    model = network()
    optimizer = Momentum(model)
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
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        asked = time.perf_counter()
        loader.load_state_dict(saved["loader"])
    dist.barrier()  # before rank 0 writes another checkpoint

    with log_of(Path(run.folder), dist.get_rank()).open("a", buffering=1) as log:  # whole lines
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)  # a loaded position in this epoch is kept
            for ids, images, labels in loader:
                waited = time.perf_counter() - asked
                step += 1
                loss = learn(model, optimizer, images, labels)
                made = {
                    "step": step,
                    "epoch": epoch,
                    "ids": ids.tolist(),
                    "inputs": [hashlib.sha256(i.numpy().tobytes()).hexdigest() for i in images],
                    "loss": loss.hex(),
                    "wait_ms": waited * 1000,
                }
                log.write(json.dumps(made) + "\n")
                if step % STEPS_PER_CHECKPOINT == 0 or step == run.steps:
                    dist.barrier()  # what a checkpoint has is in the logs of all ranks
                    if dist.get_rank() == 0:
                        save(checkpoint, step, model=model, optimizer=optimizer, loader=loader)
                asked = time.perf_counter()


class Momentum:
    """Gradient descent with momentum. torch's own optimizers take a second to be imported."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._velocity = torch.zeros(sum(p.numel() for p in self._parameters))

    @torch.no_grad()
    def step(self, gradient: torch.Tensor) -> None:
        """Make a step by the gradient of all parameters, one after the other."""
        self._velocity = 0.9 * self._velocity + gradient
        parts = self._velocity.split([p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.sub_(0.03 * part.view_as(parameter))

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"velocity": self._velocity}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._velocity = state["velocity"]


def save(checkpoint: Path, step: int, **parts: Any) -> None:
    """Write a checkpoint; a kill in the middle leaves the previous one whole."""
    state = {"step": step, **{name: part.state_dict() for name, part in parts.items()}}
    torch.save(state, checkpoint.with_suffix(".part"))
    checkpoint.with_suffix(".part").replace(checkpoint)


def learn(
    model: nn.Module, optimizer: Momentum, images: torch.Tensor, labels: torch.Tensor
) -> float:
    """Make one step together with the other ranks, and return the loss over all samples."""
    parameters = list(model.parameters())
    total = torch.zeros(1 + sum(p.numel() for p in parameters), dtype=torch.int64)
    for image, label in zip(images, labels, strict=True):
        # A copy, so that it lies in memory in the same way on whatever rank.
        loss = nn.functional.cross_entropy(model(image[None].clone()), label[None])
        gradients = torch.autograd.grad(loss, parameters)
        values = torch.cat([loss.detach().view(1), *(each.flatten() for each in gradients)])
        total += (values.double() * _ONE).round().long()
    dist.all_reduce(total)
    mean = total.double() / (_ONE * STEP_SAMPLES)
    optimizer.step(mean[1:].float())
    return mean[0].item()


def main(rank: int, run: Run) -> None:
    """Join the other ranks, and train."""
    die_with_command()
    torch.set_num_threads(1)
    meeting = (Path(run.folder) / "store").absolute().as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=run.world_size)
    train(run)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Run(**json.loads(sys.argv[2])))
