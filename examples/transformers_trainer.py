"""Kill a transformers Trainer in mid-epoch and resume it: same samples, same losses.

    python examples/transformers_trainer.py --output run --kill-at 11
    python examples/transformers_trainer.py --output run

The first command is killed by SIGKILL in its eleventh step. The second goes on from the last
checkpoint, that of step 8, without reading again what was trained on until then. Both add the
ids and the loss of every step to `run/seen.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from dataporter.trainers.transformers import ResumableTrainer


class Noisy(Dataset[dict[str, torch.Tensor]]):
    """Numbered samples with random noise."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(samples, 8, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        noisy = self.inputs[index] + 0.1 * torch.randn(8)
        return {"ids": torch.tensor(index), "x": noisy, "labels": self.inputs[index].sum()}


class Model(nn.Module):
    """Two layers and a dropout, with a log of the samples."""

    def __init__(self, seen: Path, kill_at: int | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))
        self.seen = seen
        self.kill_at = kill_at
        self.steps = 0

    def forward(self, ids: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """Predict, and log the ids and the loss."""
        self.steps += 1
        if self.steps == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.mse_loss(self.layers(x).squeeze(1), labels)
        with self.seen.open("a") as lines:
            lines.write(json.dumps({"ids": ids.tolist(), "loss": loss.item()}) + "\n")
        return {"loss": loss}


def train(output: Path, kill_at: int | None = None) -> None:
    """Train for 20 steps of 13 an epoch, from the last checkpoint if there is one."""
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=20,
        per_device_train_batch_size=4,
        save_steps=4,
        logging_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = ResumableTrainer(
        model=Model(output / "seen.jsonl", kill_at), args=arguments, train_dataset=Noisy(50)
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(output)) is not None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--kill-at", type=int, help="the step in which to be killed")
    given = parser.parse_args()
    train(given.output, given.kill_at)
