"""Lose a machine in mid-epoch and continue without it: every sample comes exactly once.

Two launchers stand for two machines here; run this, as one line, in one terminal, and at once
in another, there with `--lose-after 13` at its end:

    torchrun --nnodes 1:2 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint rendezvous
        --rdzv-conf store_type=file,keep_alive_interval=1,last_call_timeout=5
        examples/elastic.py --checkpoint ck.pt --seen ids --save-every 5

After 13 steps that launcher and its rank are killed. The other launcher forms a group of those
who are left, which go on from the last checkpoint. Or stop on three ranks, and go on with two:

    torchrun --nproc-per-node 3 examples/elastic.py --checkpoint ck.pt --seen ids --stop-after 5
    torchrun --nproc-per-node 2 examples/elastic.py --checkpoint ck.pt --seen ids

The state that rank 0 saves holds for all ranks, and for any number of them: it says how far
the epoch has come, not who did what. Each rank adds its steps to the folder `--seen`. Steps
since the last checkpoint are lost with the weights that learned from them: a restart moves
them to `undone.jsonl`, and their samples come again. What is printed is counted in the rest.
A further run would begin the next epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader
from dataporter.law import Tail

SAMPLES = 1009  # a prime: no number of ranks divides it


def train(
    checkpoint: Path,
    seen: Path,
    save_every: int | None = None,
    stop_after: int | None = None,
    lose_after: int | None = None,
    tail: Tail = "uneven",
) -> None:
    """Train to the end of the epoch or for `stop_after` steps, and write the checkpoint."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    features = torch.randn(SAMPLES, 8)
    dataset = TensorDataset(torch.arange(SAMPLES), features, features.sum(1, keepdim=True))
    # Each rank of the process group gets its share. The default tail repeats a few samples
    # if the last step has too few for all ranks. "uneven" repeats none, so the ids add up.
    loader = ResumableDataLoader(dataset, batch_size=16, shuffle=True, seed=3, tail=tail)
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    if dist.get_rank() == 0:
        undo(seen, loader.epoch, loader.samples_processed)
    dist.barrier()  # until the lost steps are moved away

    def save() -> None:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
        }
        torch.save(state, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)

    # With "uneven" a rank may have one batch fewer than another. join() lets it end first.
    log = seen / f"rank{dist.get_rank()}.jsonl"
    with log.open("a") as lines, model.join():
        for step, (ids, inputs, targets) in enumerate(loader, start=1):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done = {"epoch": loader.epoch, "position": loader.samples_processed}
            lines.write(json.dumps({**done, "loss": loss.item(), "ids": ids.tolist()}) + "\n")
            lines.flush()
            if save_every and step % save_every == 0 and dist.get_rank() == 0:
                save()
            if step == lose_after:
                lose_this_machine()
            if step == stop_after:
                break

    dist.barrier()  # until every rank has written its steps
    if dist.get_rank() == 0:
        save()
        print(f"World size {dist.get_world_size()}: up to position {loader.samples_processed}.")
        print(count(seen, loader.epoch))


def lose_this_machine() -> None:
    """Kill the launcher and this rank, as in a power failure."""
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def undo(seen: Path, epoch: int, position: int) -> None:
    """Move the steps that a checkpoint does not contain to a separate file."""

    def is_kept(step: dict[str, Any]) -> bool:
        return (step["epoch"], step["position"]) <= (epoch, position)

    for log in seen.glob("rank*.jsonl"):
        steps = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        write(log, "w", steps, is_kept)
        write(seen / "undone.jsonl", "a", steps, lambda step: not is_kept(step))


def write(
    log: Path, mode: str, steps: list[dict[str, Any]], which: Callable[[dict[str, Any]], bool]
) -> None:
    """Write some of these steps, one per line."""
    with log.open(mode) as lines:
        lines.writelines(json.dumps(step) + "\n" for step in steps if which(step))


def count(seen: Path, epoch: int) -> str:
    """Print how many samples of an epoch all ranks of all runs have seen."""
    times: Counter[int] = Counter()
    for log in seen.glob("rank*.jsonl"):
        for line in log.read_text().splitlines():
            step = json.loads(line)
            if step["epoch"] == epoch:
                times.update(step["ids"])
    repeated = sum(n > 1 for n in times.values())
    return f"Epoch {epoch}: {len(times)} of {SAMPLES} samples seen, {repeated} more than once."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--seen", type=Path, required=True, help="folder for the steps made")
    parser.add_argument("--save-every", type=int, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, help="steps; without it, to the epoch's end")
    parser.add_argument("--lose-after", type=int, help="steps after which this is killed")
    parser.add_argument("--tail", default="uneven", choices=["pad", "drop", "uneven"])
    arguments = parser.parse_args()
    arguments.seen.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    train(**vars(arguments))
    dist.destroy_process_group()
