"""The three runs of the demo. Every rank is a process.

whole      2 ranks, never interrupted
killed     the same again; SIGKILL ends all of its processes at a random step
resumed    3 ranks with other workers and batches continue from the last checkpoint
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from dataporter.errors import DataPorterError
from dataporter.tools.demo.training import (
    PARENT,
    STEP_SAMPLES,
    STEPS_PER_CHECKPOINT,
    Run,
    Step,
    read_steps,
)
from dataporter.tools.sandbox.processes import check_fork

_MOMENT = 3.0  # seconds in which a child may clean up
_DEADLINE = 120.0  # seconds for each run, on a slow machine too
_SAMPLES = 1536
_MORE_STEPS = 4

# All ranks are on this machine, which may have no network.
_LOCAL = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}

# Called with the name of a run, its current step, and its number of steps.
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The runs, and the steps that their ranks have logged."""

    seed: int
    before: Run
    after: Run
    whole: tuple[Step, ...]
    killed: tuple[Step, ...]
    resumed: tuple[Step, ...]
    same_weights: bool
    seconds: float

    @property
    def resumed_from(self) -> int:
        """The step of the checkpoint that the resumed run has loaded."""
        return self.resumed[0].step - 1

    @property
    def killed_after(self) -> int:
        """The last step that all ranks had made when they were killed."""
        return self.killed[-1].step

    @property
    def epoch(self) -> int:
        """The epoch of the kill."""
        return self.killed[-1].epoch

    @property
    def kept(self) -> list[Step]:
        """The steps that the final weights have learned from."""
        return [*(s for s in self.killed if s.step <= self.resumed_from), *self.resumed]


def run_demo(
    folder: Path,
    seed: int,
    *,
    samples: int = _SAMPLES,
    loader_options: dict[str, Any] | None = None,
    on_step: OnStep = lambda _name, _made, _total: None,
) -> Story:
    """Make the three runs, with their files in an empty folder."""
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
    kill_at = _random_step(before)
    # Ranks make a few more steps until they are killed, but never come to the end before that.
    killed = replace(before, waits_after=kill_at + _MORE_STEPS)
    return Story(
        seed=seed,
        before=before,
        after=after,
        whole=_steps_of(whole, "whole", on_step),
        killed=_steps_of(killed, "killed", on_step, kill_at=kill_at),
        resumed=_steps_of(after, "resumed", on_step),
        same_weights=_weights(whole) == _weights(after),
        seconds=time.monotonic() - began,
    )


def seen_with_torch(story: Story) -> Counter[int]:
    """Count the samples that torch's DataLoader delivers in the epoch of the kill.

    It has no state: after the restart, the epoch begins again.
    """
    loader: DataLoader[Any] = DataLoader(range(story.after.samples), STEP_SAMPLES, shuffle=True)  # type: ignore[arg-type]
    before = story.resumed_from - story.epoch * story.before.steps_per_epoch  # steps
    seen: Counter[int] = Counter()
    for steps in (before, len(loader)):
        for batch in itertools.islice(loader, steps):
            seen.update(batch.tolist())
    return seen


def _random_step(run: Run) -> int:
    """Choose a step in mid-epoch, a few steps after a checkpoint: these will be made twice."""
    rng = random.Random(run.seed)
    first = rng.randrange(1, 3) * run.steps_per_epoch
    middle = first + rng.randrange(run.steps_per_epoch // 4, run.steps_per_epoch * 3 // 4)
    return middle - middle % STEPS_PER_CHECKPOINT + rng.randint(2, 4)


def _steps_of(run: Run, name: str, on_step: OnStep, kill_at: int | None = None) -> tuple[Step, ...]:
    """Run to the end, or to the kill, and return the steps."""
    folder = Path(run.folder)
    folder.mkdir()
    module, arguments = "dataporter.tools.demo.training", json.dumps(asdict(run))
    commands = [[module, str(rank), arguments] for rank in range(run.world_size)]
    begins = torch.load(run.checkpoint)["step"] if Path(run.checkpoint).exists() else 0
    with started(commands, folder, **_LOCAL) as ranks:
        deadline = time.monotonic() + _DEADLINE
        while True:
            ended = [rank.poll() for rank in ranks]  # before the logs are read
            made = begins + len(read_steps(folder, run.world_size))
            on_step(name, made, run.steps)
            if kill_at is not None and made >= kill_at:
                for rank in ranks:
                    _signal(rank, signal.SIGKILL)
                for rank in ranks:
                    rank.wait()  # for the last lines of their logs
                break
            if all(status == 0 for status in ended) and kill_at is None:
                break
            if any(ended) or None not in ended or time.monotonic() > deadline:
                raise DataPorterError(_failure(name, made, ranks, folder))
            time.sleep(0.05)
    return tuple(read_steps(folder, run.world_size))


@contextlib.contextmanager
def started(
    commands: Sequence[Sequence[str]], folder: Path, **environment: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run modules of this package as children; at the end none is left.

    Child *i* writes its errors to `i.err` in the folder, and its temporary files there too. It
    leads a session of its own, so that a terminal's Ctrl-C reaches the command only, which then
    ends its children. If the command is killed, the system kills the children.
    """
    check_fork("This command")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    own = {"PYTHONPATH": path, "TMPDIR": str(folder), PARENT: str(os.getpid())}
    children: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"{number}.err").open("wb") as errors:
                child = subprocess.Popen(  # noqa: S603  this interpreter, with our own modules
                    [sys.executable, "-m", *command],
                    env={**os.environ, **own, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors.fileno(),
                    start_new_session=True,
                )
            children.append(child)
        yield children
    finally:
        for child in children:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child with its session, whose processes have a moment to clean up."""
    _signal(child, signal.SIGTERM, signal.SIGCONT)  # it may be stopped
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_MOMENT)
    _signal(child, signal.SIGKILL)  # also what was started meanwhile, or has lost its parent
    child.wait()


def _signal(child: subprocess.Popen[bytes], *numbers: signal.Signals) -> None:
    """Send signals to all processes that a child has started, and to the child itself."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


def _failure(name: str, made: int, ranks: list[subprocess.Popen[bytes]], folder: Path) -> str:
    errors = [(folder / f"{rank}.err").read_text(errors="replace") for rank in range(len(ranks))]
    last = next((text.strip().splitlines()[-1] for text in errors if text.strip()), "none")
    statuses = ", ".join("running" if r.poll() is None else str(r.poll()) for r in ranks)
    return (
        f"the run '{name}' of the demo stopped at step {made}. Exit statuses of its ranks: "
        f"{statuses}. Last error message: {last}"
    )


def _weights(run: Run) -> str:
    """SHA-256 of all weights in a run's last checkpoint."""
    digest = hashlib.sha256()
    for name, tensor in sorted(torch.load(run.checkpoint)["model"].items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
