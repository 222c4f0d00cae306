"""A training in Lightning of its own process.

    lightning_child.py FOLDER kill    ends by SIGKILL in the middle of the second epoch
    lightning_child.py FOLDER pause   waits after some steps until it was asked to pause
    lightning_child.py FOLDER share   likewise, and Lightning starts another rank

It logs every step to `steps.jsonl` (and that rank to `steps1.jsonl`) and leaves checkpoints.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

if os.environ.get("INTEGRATION_FIRST"):  # then it chooses between the packages, not the program
    import dataporter.trainers.lightning  # noqa: F401

from lightning_training import Module, make_loader, make_trainer, pl

from dataporter.trainers.lightning import PauseCallback

LAST_STEP = 11
WAITS_AFTER = 6  # steps
SEED = 1

torch.set_num_threads(1)


class Killed(Module):
    def training_step(self, batch):
        if len(self.steps) == LAST_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch)


class Waiting(Module):
    """Waits in its seventh step, until its parent has sent the signal that pauses it."""

    def training_step(self, batch):
        if len(self.steps) == WAITS_AFTER:
            deadline = time.monotonic() + 100
            while not self.log_file.with_name("signalled").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        return super().training_step(batch)


def main(folder, how):
    rank = os.environ.get("LOCAL_RANK", "0")
    log = folder / ("steps.jsonl" if rank == "0" else "steps1.jsonl")
    module = (Killed if how == "kill" else Waiting)(log)
    torch.manual_seed(SEED + int(rank))
    loader = make_loader(num_workers=1)
    pause = PauseCallback(folder)
    saver = pl.callbacks.ModelCheckpoint(
        folder, every_n_train_steps=3, enable_version_counter=False
    )
    callbacks = [pause, saver] if how == "kill" else [pause]
    shares = {"devices": 2, "strategy": "ddp"} if how == "share" else {}
    trainer = make_trainer(
        folder,
        callbacks,
        max_epochs=6,
        enable_checkpointing=how == "kill",
        limit_val_batches=0,
        **shares,
    )
    trainer.fit(module, loader, ckpt_path=pause.newest())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
