"""The runs of the demonstration, each on ranks that are processes of their own.

whole      2 ranks, never interrupted
killed     the same once more; all of its processes get SIGKILL at a random step
resumed    3 ranks, with other workers and batches, go on from the last checkpoint
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dataporter.errors import DataPorterError
from dataporter.tools.child_processes import kill, started
from dataporter.tools.demo.steps import Step, count_steps, read_steps
from dataporter.tools.demo.training import STEPS_PER_CHECKPOINT, Run

_DEADLINE = 120.0  # seconds for each run, on a slow machine too
_SAMPLES = 1536

# Told: the name of a run, at which step it is, and how many there are.
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was planned, and what the ranks of each run have logged."""

    seed: int
    before: Run  # how it was run until the kill
    after: Run
    whole: tuple[Step, ...]
    killed: tuple[Step, ...]
    resumed: tuple[Step, ...]
    same_weights: bool
    seconds: float

    @property
    def resumed_from(self) -> int:
        """The step of the checkpoint that the resumed run has read."""
        return self.resumed[0].step - 1

    @property
    def killed_after(self) -> int:
        """The last step that all ranks had made when they were killed."""
        return self.killed[-1].step


def tell(
    folder: Path,
    seed: int,
    *,
    samples: int = _SAMPLES,
    loader_options: dict[str, Any] | None = None,
    on_step: OnStep = lambda _name, _made, _total: None,
) -> Story:
    """Run all of it, with its files in an empty folder."""
    began = time.monotonic()
    whole = Run(
        folder=str(folder / "whole"),
        checkpoint=str(folder / "whole.pt"),
        world_size=2,
        workers=2,
        seed=seed,
        samples=samples,
        loader_options=loader_options or {},
    )
    checkpoint = str(folder / "interrupted.pt")
    before = replace(whole, folder=str(folder / "killed"), checkpoint=checkpoint)
    after = replace(before, folder=str(folder / "resumed"), world_size=3, workers=1)
    return Story(
        seed=seed,
        before=before,
        after=after,
        whole=_made(whole, "whole", on_step),
        killed=_made(before, "killed", on_step, kill_at=_random_step(before)),
        resumed=_made(after, "resumed", on_step),
        same_weights=_weights(whole) == _weights(after),
        seconds=time.monotonic() - began,
    )


def _random_step(run: Run) -> int:
    """In mid-epoch, a few steps after a checkpoint: those steps will be made twice."""
    rng = random.Random(run.seed)
    first = rng.randrange(1, 3) * run.steps_per_epoch
    middle = first + rng.randrange(run.steps_per_epoch // 4, run.steps_per_epoch * 3 // 4)
    return middle - middle % STEPS_PER_CHECKPOINT + rng.randint(2, 4)


def _made(run: Run, name: str, on_step: OnStep, kill_at: int | None = None) -> tuple[Step, ...]:
    """Run it to its end, or to the kill, and return the steps that it made."""
    folder = Path(run.folder)
    folder.mkdir()
    arguments = json.dumps(asdict(run))
    module = "dataporter.tools.demo.training"
    commands = [[module, str(rank), arguments] for rank in range(run.world_size)]
    begins = torch.load(run.checkpoint)["step"] if Path(run.checkpoint).exists() else 0
    with started(commands, folder, **_gloo()) as ranks:
        deadline = time.monotonic() + _DEADLINE
        while True:
            ended = [rank.poll() for rank in ranks]  # before the logs are read
            made = begins + count_steps(folder, run.world_size)
            on_step(name, made, run.steps)
            if kill_at is not None and made >= kill_at:
                for rank in ranks:
                    kill(rank)
                break
            if all(status == 0 for status in ended) and kill_at is None:
                break
            if any(ended) or None not in ended or time.monotonic() > deadline:
                raise DataPorterError(_words(name, made, ranks, folder))
            time.sleep(0.02)
    steps = read_steps(folder, run.world_size)
    on_step(name, begins + len(steps), run.steps)
    return tuple(steps)


def _gloo() -> dict[str, str]:
    """No rank is on another machine, and a machine need not be on a network."""
    return {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


def _words(name: str, made: int, ranks: list[subprocess.Popen[bytes]], folder: Path) -> str:
    """Say what became of a run that has come to no good end."""
    errors = [(folder / f"{rank}.err").read_text(errors="replace") for rank in range(len(ranks))]
    last = next((text.strip().splitlines()[-1] for text in errors if text.strip()), "none")
    statuses = ", ".join("still running" if r.poll() is None else str(r.poll()) for r in ranks)
    return (
        f"the run '{name}' of the demonstration has not come to its end: at step {made}, exit "
        f"statuses of its ranks {statuses}; what the first of them said last: {last}"
    )


def _weights(run: Run) -> str:
    """SHA-256 of all weights in a run's last checkpoint."""
    digest = hashlib.sha256()
    for name, tensor in sorted(torch.load(run.checkpoint)["model"].items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
