"""Ranks that evaluate the same data with Accelerate and with Lightning.

    metrics_ranks.py FOLDER

Forks 1, 2 and 3 ranks in turn. What each found is left as FOLDER/WORLD_SIZE-RANK.json.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import lightning as pl
import torch
import torchmetrics
from ports import reserved_port

from dataporter import ResumableDataLoader
from dataporter.trainers.accelerate import Accelerator

SAMPLES, BATCH = 25, 4


def with_accelerate():
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(ResumableDataLoader(range(SAMPLES), BATCH))
    tensors, objects, losses = [], [], []
    for _, batch in loader.steps():  # whose iteration is that over the loader
        ids, doubled = accelerator.gather_for_metrics((batch, {"doubled": 2 * batch}))
        tensors += zip(ids.tolist(), doubled["doubled"].tolist(), strict=True)
        objects += accelerator.gather_for_metrics([str(index) for index in batch.tolist()])
        losses.append(len(accelerator.gather_for_metrics(torch.zeros(2))))
    return {"tensors": sorted(tensors), "objects": sorted(objects, key=int), "losses": losses}


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.total, self.count = torchmetrics.SumMetric(), torchmetrics.SumMetric()

    def validation_step(self, batch):
        real = self.trainer.val_dataloaders.delivered.real_samples(batch)
        self.total.update((real * 1000.0).sum())
        self.count.update(float(len(real)))
        self.log("sum", self.total)
        self.log("count", self.count)


def with_lightning(folder, world_size):
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        logger=False,
        barebones=False,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    (found,) = trainer.validate(Module(), ResumableDataLoader(range(SAMPLES), BATCH), verbose=False)
    return found


def rank_of(rank, world_size, port, folder):
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    found = {"accelerate": with_accelerate(), "lightning": with_lightning(folder, world_size)}
    (folder / f"{world_size}-{rank}.json").write_text(json.dumps(found))


def fork_rank(*arguments):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            rank_of(*arguments)
            status = 0
        except BaseException:  # noqa: BLE001  it is shown, and the test fails
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


if __name__ == "__main__":
    for size in (1, 2, 3):
        with reserved_port() as port:
            ranks = [fork_rank(rank, size, port, Path(sys.argv[1])) for rank in range(size)]
            statuses = [os.waitpid(pid, 0)[1] for pid in ranks]
        if any(statuses):
            sys.exit(f"a rank of {size} failed")
