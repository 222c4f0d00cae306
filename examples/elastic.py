"""Begin an epoch on three ranks and finish it on two: every sample comes exactly once.

    torchrun --nproc-per-node 3 examples/elastic.py --checkpoint ck.pt --seen ids --stop-after 5
    torchrun --nproc-per-node 2 examples/elastic.py --checkpoint ck.pt --seen ids

The state that rank 0 saves holds for all ranks, and for any number of them: it says how far
the epoch has come, not who did what. Each rank adds the ids of its samples to the folder
`--seen`, and what is printed is counted there. A third run would begin the next epoch.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader

SAMPLES = 1009  # a prime: no number of ranks divides it


def train(checkpoint: Path, seen: Path, stop_after: int | None) -> None:
    """Train to the end of the epoch or for `stop_after` steps, and write the checkpoint."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    features = torch.randn(SAMPLES, 8)
    dataset = TensorDataset(torch.arange(SAMPLES), features, features.sum(1, keepdim=True))
    # Each rank of the process group gets its share. The default tail repeats a few samples
    # where the last step has too few for all ranks; "uneven" repeats none, so the ids add up.
    loader = ResumableDataLoader(dataset, batch_size=16, shuffle=True, seed=3, tail="uneven")
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    log = seen / f"rank{dist.get_rank()}.jsonl"
    # With "uneven" a rank may have a batch fewer than another: join() lets it end first.
    with log.open("a") as lines, model.join():
        for step, (ids, inputs, targets) in enumerate(loader, start=1):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lines.write(json.dumps({"epoch": loader.epoch, "ids": ids.tolist()}) + "\n")
            if step == stop_after:
                break

    dist.barrier()  # every rank has written its ids
    if dist.get_rank() == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
        }
        torch.save(state, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)
        print(f"World size {dist.get_world_size()}: up to position {loader.samples_processed}.")
        print(count(seen, loader.epoch))


def count(seen: Path, epoch: int) -> str:
    """Say how many samples of an epoch all ranks of all runs have seen."""
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
    parser.add_argument("--seen", type=Path, required=True, help="folder for the ids seen")
    parser.add_argument("--stop-after", type=int, help="steps; without it, to the epoch's end")
    arguments = parser.parse_args()
    arguments.seen.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    train(arguments.checkpoint, arguments.seen, arguments.stop_after)
    dist.destroy_process_group()
