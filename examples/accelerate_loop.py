"""Kill a training loop under Accelerate in mid-epoch and resume it: same samples, same losses.

    accelerate launch examples/accelerate_loop.py --output run --kill-at 11
    accelerate launch examples/accelerate_loop.py --output run

The first command is killed by SIGKILL at its eleventh batch. The second goes on from the
last checkpoint, that of batch 8. Every process adds the ids and the loss of its batches to
`run/seen-0.jsonl`, `run/seen-1.jsonl` and so on. Both run on any number of processes, each
with batches of four.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from accelerate.utils import tqdm
from torch import nn
from torch.utils.data import Dataset

from dataporter import ResumableDataLoader
from dataporter.trainers.accelerate import Accelerator

EPOCHS = 2
SAVE_EVERY = 4  # batches


class Noisy(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Numbered samples with random noise."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(samples, 8, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        noisy = self.inputs[index] + 0.1 * torch.randn(8)
        return index, noisy, self.inputs[index].sum()


def newest(output: Path) -> Path | None:
    """Return the newest checkpoint."""
    folders = {tuple(map(int, path.name.split("-")[1:])): path for path in output.glob("batch-*-*")}
    return folders[max(folders)] if folders else None


def save(accelerator: Accelerator, output: Path, at: str) -> None:
    """Save a checkpoint under a temporary name, and rename it when it is complete."""
    accelerator.save_state(str(output / "part"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (output / "part").rename(output / f"batch-{at}")
    accelerator.wait_for_everyone()


def train(output: Path, kill_at: int | None = None) -> Accelerator:
    """Train for two epochs, from the last checkpoint if there is one."""
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    loader = ResumableDataLoader(Noisy(50), batch_size=4, shuffle=True, seed=7)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    checkpoint = newest(output)
    if checkpoint is not None:
        accelerator.load_state(str(checkpoint))

    batches = 0
    log = output / f"seen-{accelerator.process_index}.jsonl"
    for epoch in range(loader.epoch, EPOCHS):
        loader.set_epoch(epoch)  # a position that was loaded for this epoch is kept
        shown = tqdm(loader, initial=loader.batches_processed)
        for ids, inputs, targets in shown:
            batches += 1
            if batches == kill_at:
                accelerator.wait_for_everyone()  # all have trained on the batch before
                os.kill(os.getpid(), signal.SIGKILL)
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            with log.open("a") as lines:
                lines.write(json.dumps({"ids": ids.tolist(), "loss": loss.item()}) + "\n")
            # Gradients are not saved, so save only when all of them have been applied.
            if accelerator.sync_gradients and loader.batches_processed % SAVE_EVERY == 0:
                save(accelerator, output, f"{epoch}-{loader.batches_processed}")
    return accelerator


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--kill-at", type=int, help="the batch at which to be killed")
    given = parser.parse_args()
    train(given.output, given.kill_at).end_training()
