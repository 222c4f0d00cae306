"""A small training in Lightning that logs every step, for tests and for scripts that are killed.

The framework is imported under the name in LIGHTNING_NAME: the two packages are the same.
"""

import importlib
import json
import os
import warnings
from pathlib import Path

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from dataporter import ResumableDataLoader

NAME = os.environ.get("LIGHTNING_NAME", "lightning.pytorch")
pl = importlib.import_module(NAME)

SAMPLES = 22
BATCH_SIZE = 3  # 8 batches, the last one short


class Points(Dataset):
    """Sample i is i and features with noise, so that a wrong generator shows."""

    def __init__(self, length=SAMPLES):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, torch.tensor([index / 10, 1.0]) + torch.rand(2)


class Stream(IterableDataset):
    """The same samples, one after another, without a length; it knows how far it has come."""

    at = 0

    def __init__(self, samples=SAMPLES):
        self.samples = samples

    def __iter__(self):
        while self.at < self.samples:
            self.at += 1
            yield self.at - 1, torch.tensor([self.at / 10, 1.0]) + torch.rand(2)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Shards(IterableDataset):
    """Four lanes of six samples each, that know how far they have come."""

    at = 0

    def __iter__(self):
        info = get_worker_info()
        lane = 0 if info is None else info.id
        while self.at < 6:
            self.at += 1
            yield 10 * lane + self.at - 1, torch.tensor([self.at / 10, lane / 10])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def make_loader(dataset=None, **options):
    dataset = Points() if dataset is None else dataset
    is_stream = isinstance(dataset, IterableDataset)
    defaults = {"batch_size": BATCH_SIZE, "shuffle": not is_stream}
    return ResumableDataLoader(dataset, **{**defaults, **options})


def combine(mode, **loaders):
    quiet()
    return pl.utilities.CombinedLoader(loaders, mode)


class Module(pl.LightningModule):
    """A linear model with dropout and momentum: everything that a resume could lose counts."""

    def __init__(self, log=None):
        super().__init__()
        torch.manual_seed(7)  # make loaders after this, they draw their seeds
        self.layer = torch.nn.Linear(2, 1)
        self.dropout = torch.nn.Dropout(0.3)
        self.steps = []
        self.validated = []
        self.log_file = None if log is None else Path(log)

    def training_step(self, batch):
        named = batch if isinstance(batch, dict) else {"": batch}
        batches = {name: part for name, part in named.items() if part is not None}
        loss = sum(
            self.layer(self.dropout(features)).square().mean() for _, features in batches.values()
        )
        ids = {name: ids.tolist() for name, (ids, _) in batches.items()}
        step = {
            "epoch": self.current_epoch,
            "ids": ids if isinstance(batch, dict) else ids[""],
            "loss": loss.item().hex(),
        }
        self.steps.append(step)
        if self.log_file is not None:
            with self.log_file.open("a") as log:
                log.write(json.dumps(step) + "\n")
        return loss

    def validation_step(self, batch):
        ids, features = batch
        self.validated.append({"ids": ids.tolist(), "noise": features.tolist()})

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


MOMENTS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
)


class SaveAt(pl.Callback):
    """Saves a checkpoint at every moment of some kinds."""

    def __init__(self, folder, moments=MOMENTS):
        self.folder, self.moments = Path(folder), moments
        self.saved = []  # (moment, steps made, path)

    def save(self, moment, trainer, module):
        if moment in self.moments and not trainer.sanity_checking:
            path = self.folder / f"{len(self.saved)}-{moment}.ckpt"
            trainer.save_checkpoint(path)
            self.saved.append((moment, len(module.steps), path))


def _saving(moment):
    return lambda self, trainer, module, *_: self.save(moment, trainer, module)


for _moment in MOMENTS:
    setattr(SaveAt, _moment, _saving(_moment))


# Advice of Lightning's on speed and habits, and what it still uses of torch's.
ADVICE = (
    "does not have many workers",
    "exists and is not empty",
    "have no `val_dataloader`",
    "LeafSpec",
)


def quiet():
    """Leave Lightning's advice out."""
    for about in ADVICE:
        warnings.filterwarnings("ignore", message=f".*{about}.*")


def make_trainer(folder, callbacks, **options):
    quiet()
    defaults = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    return pl.Trainer(callbacks=callbacks, **{**defaults, **options})
