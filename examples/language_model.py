"""Train a language model on a mixture of two folders, packed, killed, and resumed on other ranks.

    python examples/language_model.py --folder run

Two folders of Parquet files hold documents as token ids. A sample is a window of 64 tokens over the
documents of one folder, and 70 % of the samples are from the first. Three runs have steps of 24
samples: one on one rank from start to end; one on two ranks, which saves a checkpoint every five
steps and is killed as a whole after 13; and one on three ranks, which goes on from there. The
losses of all steps are those of the run that was not killed, up to rounding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dataporter import ResumableDataLoader
from dataporter.shards import ShardedDataset
from dataporter.views import Mixture

WEIGHTS = {"web": 0.7, "code": 0.3}
WORDS, LENGTH = 50, 64  # token ids, and tokens of a sample
STEP, STEPS = 24, 30  # samples of a step of all ranks
SAVE_EVERY, KILL_AFTER = 5, 13  # steps


def write_files(folder: Path) -> None:
    """Write documents of different lengths, in which each token depends on the one before."""
    random = np.random.default_rng(0)
    for kind, stride in (("web", 3), ("code", 7)):
        (folder / kind).mkdir(parents=True)
        for number in range(4):
            documents = [
                (random.integers(WORDS) + stride * np.arange(random.integers(20, 200))) % WORDS
                for _ in range(100)
            ]
            table = pa.table({"tokens": [document.astype(np.int32) for document in documents]})
            pq.write_table(table, folder / kind / f"{number}.parquet", row_group_size=20)


def make_loader(folder: Path, ranks: int) -> ResumableDataLoader[Any]:
    """Mix windows of both folders."""
    parts = {}
    for kind, weight in WEIGHTS.items():
        corpus = ShardedDataset(folder / kind, cache=folder / "cache")
        parts[kind] = (corpus.packed(LENGTH, by="tokens", num_workers=0), weight)
    mixture = Mixture(parts, epoch=STEP * STEPS)
    return ResumableDataLoader(mixture, STEP // ranks, shuffle=True, seed=3)


def train(rank: int, ranks: int, folder: Path, name: str, kill_after: int | None) -> None:
    """Train to the end of the epoch, from the run's last checkpoint if there is one."""
    group = f"file://{folder.absolute() / name}-{ranks}.group"
    dist.init_process_group("gloo", init_method=group, rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = make_loader(folder, ranks)
    losses: list[float] = []
    checkpoint = folder / f"{name}.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        losses = saved["losses"]

    for batch in loader:
        tokens = batch["tokens"].long()
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        of_all = loss.detach()
        dist.all_reduce(of_all)
        losses.append(of_all.item() / ranks)
        if rank == 0 and (len(losses) % SAVE_EVERY == 0 or len(losses) == STEPS):
            state = {
                "model": model.module.state_dict(),
                "loader": loader.state_dict(),
                "losses": losses,
            }
            torch.save(state, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)
        if len(losses) == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


def run(ranks: int, folder: Path, name: str, kill_after: int | None = None) -> list[float]:
    """Run some ranks to their end, and return the losses that the last checkpoint has."""
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=train, args=(rank, ranks, folder, name, kill_after))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    losses: list[float] = torch.load(folder / f"{name}.pt")["losses"]
    return losses


def main(folder: Path) -> None:
    """Write the files, train three times, and compare."""
    write_files(folder)
    whole = run(1, folder, "whole")
    print(f"One rank: {len(whole)} steps, loss {whole[0]:.3f} to {whole[-1]:.3f}.")
    saved = run(2, folder, "killed", KILL_AFTER)
    print(f"Two ranks: killed after {KILL_AFTER} steps, {len(saved)} of them saved.")
    resumed = run(3, folder, "killed")
    print(f"Three ranks: went on to {len(resumed)} steps.")
    apart = max(abs(one - other) for one, other in zip(whole, resumed, strict=True))
    print("All losses are the same." if apart < 1e-4 else f"The losses differ by {apart:.4f}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for data and checkpoints")
    main(parser.parse_args().folder)
