"""A training is killed in mid-epoch, resumed, and compared bit for bit with one that was not.

    python examples/demo.py

It runs three processes, one after the other: a training without interruption; the same
training again, ended by SIGKILL at a random step of its second or third epoch; and a new
process that goes on from the last checkpoint. Each logs every step: the samples' ids, a
digest of the augmented input, the bits of the loss. What is said at the end is computed
from these logs, and the exit status is 1 if anything differs. CPU only, under a minute.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from dataporter import ResumableDataLoader

EPOCHS = 3
SAMPLES = 2048
BATCH_SIZE = 32
STEPS_PER_EPOCH = SAMPLES // BATCH_SIZE
STEPS_PER_CHECKPOINT = 6
SIDE = 24  # pixels
DEADLINE = 120.0  # seconds for each process, on a slow machine too


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step, as its process logged it."""

    step: int
    epoch: int
    ids: list[int]
    input: str  # SHA-256 of the augmented images' bytes
    loss: str  # float.hex(): every bit of it
    wait_ms: float  # for the batch; from load_state_dict() on where that came just before


class Drawings(Dataset[tuple[int, torch.Tensor, int]]):
    """Discs, squares and crosses, shifted, mirrored and noised at random at each reading."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.labels = rng.integers(3, size=SAMPLES)
        self.images = np.stack([_drawing(label, rng) for label in self.labels])

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        # Nothing here knows of dataporter: plain draws from the three global generators.
        shift = random.randint(-3, 3), random.randint(-3, 3)
        image = np.roll(self.images[index], shift, axis=(0, 1))
        image = image + np.random.normal(0, 0.5, image.shape)
        tensor = torch.from_numpy(image.astype(np.float32))[None]
        if torch.rand(()) < 0.5:
            tensor = tensor.flip(-1)
        return index, tensor, int(self.labels[index])


def _drawing(label: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw one shape, white on black; shape (SIDE, SIDE)."""
    rows, columns = np.ogrid[:SIDE, :SIDE]
    down, right = (np.abs(axis - rng.integers(8, SIDE - 8)) for axis in (rows, columns))
    radius = rng.integers(4, 8)
    shapes = (
        down**2 + right**2 <= radius**2,
        np.maximum(down, right) <= radius * 0.9,
        (np.minimum(down, right) <= 1) & (np.maximum(down, right) <= radius),
    )
    return shapes[label].astype(np.float64)


def train(checkpoint: Path, log: Path) -> None:
    """Train to the end, from the checkpoint if there is one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3),
        nn.Flatten(),
        nn.Linear(32 * 16, 3),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    loader = ResumableDataLoader(Drawings(), batch_size=BATCH_SIZE, shuffle=True, seed=7)
    step = 0
    asked = time.perf_counter()
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        asked = time.perf_counter()
        loader.load_state_dict(saved["loader"])

    with log.open("a", buffering=1) as lines:  # a line is written once it is whole
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)  # a loaded position in this epoch is kept
            for ids, images, labels in loader:
                waited = time.perf_counter() - asked
                step += 1
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                made = Step(
                    step=step,
                    epoch=epoch,
                    ids=ids.tolist(),
                    input=hashlib.sha256(images.numpy().tobytes()).hexdigest(),
                    loss=float(loss.item()).hex(),
                    wait_ms=waited * 1000,
                )
                lines.write(json.dumps(asdict(made)) + "\n")
                if step % STEPS_PER_CHECKPOINT == 0 or step == EPOCHS * STEPS_PER_EPOCH:
                    state = {
                        "step": step,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                    }
                    # A kill in the middle of writing leaves the previous checkpoint whole.
                    torch.save(state, checkpoint.with_suffix(".part"))
                    checkpoint.with_suffix(".part").replace(checkpoint)
                asked = time.perf_counter()


def read_log(log: Path) -> list[Step]:
    """Read the steps of one process; a line that a kill cut short is no step."""
    if not log.exists():
        return []
    lines = log.read_text().splitlines(keepends=True)
    return [Step(**json.loads(line)) for line in lines if line.endswith("\n")]


def process(checkpoint: Path, log: Path, kill_at: int | None = None) -> list[Step]:
    """Train in a process of its own, killed once it has logged step `kill_at`."""
    command = [sys.executable, __file__, "--train", str(checkpoint), str(log)]
    # torch makes a folder for its caches: that goes where the rest goes.
    environment = {**os.environ, "TMPDIR": str(log.parent)}
    deadline = time.monotonic() + DEADLINE
    with subprocess.Popen(command, env=environment) as child:
        try:
            if kill_at is not None:
                reached = f'{{"step": {kill_at},'
                while not (log.exists() and reached in log.read_text()):
                    if child.poll() is not None or time.monotonic() > deadline:
                        sys.exit(f"The training did not come to step {kill_at}.")
                    time.sleep(0.002)
                child.send_signal(signal.SIGKILL)
            status = child.wait(deadline - time.monotonic())
        finally:
            child.kill()  # does nothing to a process that has ended
    expected = 0 if kill_at is None else -signal.SIGKILL
    if status != expected:
        sys.exit(f"The training ended with status {status}, not {expected}.")
    return read_log(log)


ASPECTS: dict[str, Callable[[Step], object]] = {
    "losses, every bit": lambda step: step.loss,
    "sample ids and epoch": lambda step: (step.epoch, step.ids),
    "augmented inputs, SHA-256 of bytes": lambda step: step.input,
}


def compare(expected: Sequence[Step], found: Sequence[Step], aspect: str) -> list[int]:
    """Return the steps of `found` that are not, in this aspect, what was expected."""
    value = ASPECTS[aspect]
    known = {step.step: value(step) for step in expected}
    return [step.step for step in found if known.get(step.step) != value(step)]


def missing(expected: Sequence[Step], found: Sequence[Step]) -> list[int]:
    """Return the steps that were expected and not made."""
    made = {step.step for step in found}
    return [step.step for step in expected if step.step not in made]


def weights_digest(checkpoint: Path) -> str:
    """Return the SHA-256 of all weights in a checkpoint."""
    digest = hashlib.sha256()
    for name, tensor in sorted(torch.load(checkpoint)["model"].items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def table(whole: Sequence[Step], killed: Sequence[Step], resumed: Sequence[Step]) -> str:
    """Show the steps around the kill in the order they were made, at most 80 columns."""
    known = {step.step: step for step in whole}
    first, last = resumed[0].step, killed[-1].step
    before = [step for step in killed if step.step >= first - 2]
    after = [step for step in resumed if step.step <= last + 2]
    head = f"{'sample ids':<13}{'input':<7}{'loss':<11}"
    return "\n".join(
        [
            f"     | {'never interrupted':<31} | {'killed, then resumed':<31} | same",
            f"step | {head} | {head} |",
            *(_row(known.get(step.step), step) for step in before),
            f"---- SIGKILL; a new process goes on from the checkpoint of step {first - 1} ----",
            *(_row(known.get(step.step), step) for step in after),
            f"(ids: the first 2 of {BATCH_SIZE}; input: start of the images' SHA-256)",
        ]
    )


def _row(expected: Step | None, found: Step) -> str:
    same = expected is not None and all(of(expected) == of(found) for of in ASPECTS.values())
    return f"{found.step:>4} | {_cells(expected)} | {_cells(found)} | {'yes' if same else 'NO'}"


def _cells(step: Step | None) -> str:
    if step is None:
        return " " * 31
    ids = " ".join(map(str, step.ids[:2])) + " .."
    # Shortened for the eye: what is compared are all ids, all of the digest and every bit.
    return f"{ids:<13}{step.input[:6]:<7}{float.fromhex(step.loss):<11.9f}"


def report(
    whole: Sequence[Step], killed: Sequence[Step], resumed: Sequence[Step], *, same_weights: bool
) -> bool:
    """Say what the logs show, and return whether nothing differs."""
    found = [*killed, *resumed]
    print(f"\nAll {len(found)} steps, {len(killed)} before and {len(resumed)} after the kill,")
    print("compared with the run that was never interrupted:")
    differing = {aspect: compare(whole, found, aspect) for aspect in ASPECTS}
    for aspect, steps in differing.items():
        _say(aspect, f"{len(found) - len(steps)} of {len(found)} identical", steps)
    left_out = missing(whole, found)
    _say("steps left out", str(len(left_out)), left_out)

    twice = [step for step in resumed if step.step <= killed[-1].step]
    changed = sorted({step for aspect in ASPECTS for step in compare(killed, twice, aspect)})
    _say("steps made twice", f"{len(twice) - len(changed)} of {len(twice)} identical", changed)
    _say("weights at the end", "identical" if same_weights else "DIFFERENT")

    usual = median(step.wait_ms for step in whole)
    took = resumed[0].wait_ms
    print(f"\nTime to resume, from load_state_dict() to the first batch: {took:.1f} ms")
    print(f"(in the run that was never interrupted, a batch takes {usual:.1f} ms)\n")
    return same_weights and not (left_out or changed or any(differing.values()))


def _say(what: str, finding: str, steps: Sequence[int] = ()) -> None:
    where = f" (first: step {steps[0]})" if steps else ""
    print(f"  {what:<36}{finding}{where}")


def main() -> int:
    """Run the three processes and report; the exit status says whether all was identical."""
    # In mid-epoch, and a few steps after a checkpoint: those steps will be made twice.
    epoch = random.randrange(1, EPOCHS)
    middle = epoch * STEPS_PER_EPOCH + random.randrange(12, STEPS_PER_EPOCH - 12)
    kill_at = middle - middle % STEPS_PER_CHECKPOINT + random.randint(2, 4)

    print("dataporter: a training that is killed in mid-epoch, resumed, and compared\n")
    print("A small network learns to tell drawings apart. Whenever a drawing is read it")
    print("is shifted, mirrored and noised at random: no two epochs see the same images.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("1. Training without interruption ...", end=" ", flush=True)
        whole = process(folder / "whole.pt", folder / "whole.log")
        start, end = (float.fromhex(step.loss) for step in (whole[0], whole[-1]))
        print(f"{EPOCHS} epochs, {len(whole)} steps, loss {start:.2f} -> {end:.2f}")

        print("2. The same training again, to be killed ...", end=" ", flush=True)
        checkpoint = folder / "interrupted.pt"
        killed = process(checkpoint, folder / "killed.log", kill_at)
        last = killed[-1]
        print(f"SIGKILL after step {last.step}, in epoch {last.epoch + 1}")

        print("3. A new process reads the last checkpoint ...", end=" ", flush=True)
        resumed = process(checkpoint, folder / "resumed.log")
        print(f"steps {resumed[0].step} to {resumed[-1].step}\n")
        same_weights = weights_digest(folder / "whole.pt") == weights_digest(checkpoint)

    print(table(whole, killed, resumed))
    if report(whole, killed, resumed, same_weights=same_weights):
        print("IDENTICAL: killed and resumed, the training is the same to the last bit.")
        return 0
    print("DIFFERENT: the resumed training is not the one that was never interrupted.")
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    # For the processes that this one starts.
    parser.add_argument("--train", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(*arguments.train)
    else:
        sys.exit(main())
