"""Train in Lightning, stop at any moment and start again: every sample comes once an epoch.

    python examples/lightning_pause.py --folder run --pause-after 40
    python examples/lightning_pause.py --folder run

The first command gets SIGUSR1 in its 40th step, as if the machine were wanted back, saves and
exits; SIGTERM does the same. The second goes on, in the middle of an epoch. It would also after
`kill -9`, from the last checkpoint that ModelCheckpoint wrote. Each step adds the ids of its
samples to a file in the folder, and what is printed is counted there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader
from dataporter.trainers.lightning import PauseCallback

SAMPLES = 1009
EPOCHS = 3


class Regression(LightningModule):
    """A small model with a log of the samples."""

    def __init__(self, seen: Path, pause_after: int | None) -> None:
        super().__init__()
        self.seen = seen
        self.pause_after = pause_after
        self.layer = nn.Linear(8, 1)
        self.dropout = nn.Dropout(0.1)

    def training_step(self, batch: Any) -> torch.Tensor:
        ids, inputs, targets = batch
        with self.seen.open("a") as lines:
            lines.write(json.dumps({"epoch": self.current_epoch, "ids": ids.tolist()}) + "\n")
        if self.global_step + 1 == self.pause_after:
            os.kill(os.getpid(), signal.SIGUSR1)
        return nn.functional.mse_loss(self.layer(self.dropout(inputs)), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def train(folder: Path, pause_after: int | None) -> None:
    """Train to the end, from the newest checkpoint in this folder if there is one."""
    features = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(torch.arange(SAMPLES), features, features.sum(1, keepdim=True))
    loader = ResumableDataLoader(dataset, batch_size=16, shuffle=True)
    pause = PauseCallback(folder)
    callbacks = [pause, ModelCheckpoint(folder, every_n_train_steps=25)]
    trainer = Trainer(
        max_epochs=EPOCHS,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Regression(folder / "seen.jsonl", pause_after)
    trainer.fit(module, loader, ckpt_path=pause.newest())
    for epoch in range(EPOCHS):
        print(count(folder / "seen.jsonl", epoch))


def count(seen: Path, epoch: int) -> str:
    """Print how many samples of an epoch all runs have seen."""
    times: Counter[int] = Counter()
    for line in seen.read_text().splitlines():
        step = json.loads(line)
        if step["epoch"] == epoch:
            times.update(step["ids"])
    repeated = sum(n > 1 for n in times.values())
    return f"Epoch {epoch}: {len(times)} of {SAMPLES} samples seen, {repeated} more than once."


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and ids")
    parser.add_argument("--pause-after", type=int, help="steps after which a signal comes")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    train(options.folder, options.pause_after)


if __name__ == "__main__":
    main()
