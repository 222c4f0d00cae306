"""A Ray Train run of two workers, one of which is killed: Ray starts them again, exactly.

    python examples/ray_train.py --folder run --kill-after 13

After 13 steps a worker is killed with SIGKILL. Ray starts both anew with the newest checkpoint
that was reported, and they make the rest of the epoch: each sample that the weights have
learned from comes once, in the same batches as without the kill. Every step goes to a
worker's log in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader
from dataporter.trainers.ray import load_loader, save_loader

SAMPLES = 499


def work(config: dict[str, Any]) -> None:
    """Train to the end of the epoch in one worker, and report checkpoints."""
    torch.manual_seed(0)
    model = prepare_model(nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    features = torch.randn(SAMPLES, 8)
    dataset = TensorDataset(torch.arange(SAMPLES), features, features.sum(1, keepdim=True))
    # The loader shares the data itself. prepare_data_loader would replace it by torch's.
    loader = ResumableDataLoader(dataset, batch_size=8, shuffle=True, seed=3)
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "model.pt"))
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            load_loader(loader, folder)

    rank = train.get_context().get_world_rank()
    with Path(config["folder"], f"rank{rank}.jsonl").open("a") as lines:
        for ids, inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done = {"epoch": loader.epoch, "step": loader.batches_processed}
            lines.write(json.dumps({**done, "loss": loss.item(), "ids": ids.tolist()}) + "\n")
            lines.flush()
            if loader.batches_processed % config["save_every"] == 0:
                with tempfile.TemporaryDirectory() as folder:
                    if rank == 0:
                        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(state, Path(folder, "model.pt"))
                    save_loader(loader, folder)
                    train.report({}, checkpoint=train.Checkpoint.from_directory(folder))
            if loader.batches_processed == config["kill_after"] and rank == 1 and not checkpoint:
                os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path, save_every: int, kill_after: int | None) -> None:
    """Start Ray on this machine and train."""
    ray.init("local", num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        work,
        train_loop_config={
            "folder": str(folder.resolve()),
            "save_every": save_every,
            "kill_after": kill_after,
        },
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            storage_path=str(folder.resolve()),
            name="checkpoints",
            failure_config=train.FailureConfig(max_failures=1),
        ),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and logs")
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--kill-after", type=int, help="steps after which a worker is killed")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    run(**vars(arguments))
