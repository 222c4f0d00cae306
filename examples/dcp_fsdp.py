"""Sharded weights and the place in the data in one checkpoint, written while training goes on.

    torchrun --nproc-per-node 2 --max-restarts 1 examples/dcp_fsdp.py --folder run --kill-after 13

After 13 steps a rank is killed with SIGKILL. torchrun starts the group anew, which loads the
newest complete checkpoint and makes the rest of the epoch: the same samples, and the same
losses, bit by bit, as without the kill. Started once more, with any number of ranks, it
would train the next epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader
from dataporter.trainers.distributed_checkpoint import WholeState

SAMPLES = 499


def train(folder: Path, save_every: int, kill_after: int | None) -> None:
    """Train to the end of the epoch, and write every step to this rank's log."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters())
    features = torch.randn(SAMPLES, 8)
    dataset = TensorDataset(torch.arange(SAMPLES), features, features.sum(1, keepdim=True))
    loader = ResumableDataLoader(dataset, batch_size=8, shuffle=True, seed=3)
    part = WholeState(loader)  # which an iterable needs; this loader would do as it is

    if newest := newest_checkpoint(folder):
        weights, moments = get_state_dict(model, optimizer)
        load({"model": weights, "optimizer": moments, "loader": part}, checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

    # A group for the writers, so that their messages do not mix with those of the training.
    writers = dist.new_group(backend="gloo")

    def save() -> Any:
        weights, moments = get_state_dict(model, optimizer)
        return async_save(
            {"model": weights, "optimizer": moments, "loader": part},
            checkpoint_id=folder / f"epoch{loader.epoch:04}step{loader.batches_processed:06}",
            process_group=writers,
        )

    saving: Any = None
    with (folder / f"rank{dist.get_rank()}.jsonl").open("a") as lines:
        for ids, inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done = {"epoch": loader.epoch, "step": loader.batches_processed}
            lines.write(json.dumps({**done, "loss": loss.item(), "ids": ids.tolist()}) + "\n")
            lines.flush()
            if loader.batches_processed % save_every == 0:
                if saving is not None:
                    saving.result()  # one checkpoint at a time
                saving = save()
            if loader.batches_processed == kill_after and is_to_die():
                os.kill(os.getpid(), signal.SIGKILL)
    if saving is not None:
        saving.result()
    save().result()


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the last complete checkpoint. Its metadata is written last."""
    complete = [path.parent for path in folder.glob("epoch*/.metadata")]
    return max(complete, key=lambda path: path.name, default=None)


def is_to_die() -> bool:
    """Return True on the last rank in its first run."""
    is_last = dist.get_rank() == dist.get_world_size() - 1
    return is_last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and logs")
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--kill-after", type=int, help="steps after which a rank is killed")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    train(**vars(arguments))
    dist.destroy_process_group()
