"""Train on a folder of Parquet files, be killed, and resume with other workers and batches.

    python examples/data_in_files.py --folder run

A child process trains with two workers and batches of 32, saves a checkpoint every five steps, and
kills itself with SIGKILL after 13. Then this process goes on from the last checkpoint, with one
worker and batches of 50, to the end of the epoch. Every sample comes exactly once.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from dataporter import ResumableDataLoader
from dataporter.shards import ShardedDataset

FILES, ROWS = 8, 250  # and rows of each file
SAVE_EVERY = 5  # steps
KILL_AFTER = 13


def write_files(folder: Path) -> None:
    """Write numbered samples with eight features each."""
    folder.mkdir()
    features = np.random.default_rng(0).standard_normal((FILES * ROWS, 8), dtype=np.float32)
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "features": list(features[ids.start : ids.stop])})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=50)


def train(folder: Path, *, batch_size: int, workers: int, kill_after: int | None) -> list[int]:
    """Train to the end of the epoch, from the last checkpoint if there is one.

    Return the ids of all samples that the model has learned from.
    """
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    corpus = ShardedDataset(folder / "data", cache=folder / "cache")
    loader = ResumableDataLoader(corpus, batch_size, shuffle=True, num_workers=workers, seed=3)
    seen: list[int] = []
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        seen = saved["seen"]
        print(f"Resumed at sample {loader.samples_processed} of {len(corpus)}.")

    for step, batch in enumerate(loader, start=1):
        targets = batch["features"].sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(batch["features"]), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += batch["id"].tolist()
        if step % SAVE_EVERY == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "seen": seen,
            }
            torch.save(state, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)
        if step == kill_after:
            print(f"Killed after {step} steps, at sample {loader.samples_processed}.", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    return seen


def main(folder: Path) -> None:
    """Write the files, let a run over them be killed, resume it, and count."""
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder / "data")
    child = [sys.executable, __file__, "--folder", str(folder), "--is-killed"]
    subprocess.run(child, check=False)
    seen = train(folder, batch_size=50, workers=1, kill_after=None)
    times = Counter(seen)
    repeated = sum(count > 1 for count in times.values())
    print(f"{len(times)} of {FILES * ROWS} samples seen, {repeated} more than once.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for data and checkpoint")
    parser.add_argument("--is-killed", action="store_true", help="the run that is killed")
    arguments = parser.parse_args()
    if arguments.is_killed:
        train(arguments.folder, batch_size=32, workers=2, kill_after=KILL_AFTER)
    else:
        main(arguments.folder)
