"""Loaders that a profile has an advice for, and the same loaders once the advice is followed."""

import time

import torch
from profiled_loaders import Drawing, Hoarding, Slow
from torch.utils.data import Dataset, IterableDataset

from dataporter import ResumableDataLoader
from dataporter.converters import DtypeConverter

LONG = 0.02  # seconds: far longer than anything else that is done for a batch


class Few(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return float(index)


class FewAtOnce(Few):
    def __getitems__(self, indices):
        return [float(index) for index in indices]


class Even(Slow):
    def __getitem__(self, index):
        time.sleep(0.001)
        return index


class Numbers(IterableDataset):
    """A stream whose state takes long to make."""

    at = 0

    def __iter__(self):
        while self.at < 160:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        time.sleep(LONG)
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def long(batch):
    time.sleep(LONG)
    return torch.as_tensor(batch)


def noisy(samples):
    return torch.rand(len(samples), 4)


def collation(*, followed):
    return ResumableDataLoader(Even(), 8, collate_fn=None if followed else long)


def converter(*, followed):
    return ResumableDataLoader(Few(), 8, converter=None if followed else long)


def snapshots(*, followed):
    return ResumableDataLoader(Numbers(), 8, snapshot_every_n_steps=10 if followed else 1)


def vectorised(*, followed):
    return ResumableDataLoader(FewAtOnce() if followed else Few(), 64)


def random_numbers(*, followed):
    if followed:
        return ResumableDataLoader(Few(), 64, collate_fn=noisy)
    return ResumableDataLoader(Drawing(), 64)


def memory(*, followed):
    return ResumableDataLoader(Few() if followed else Hoarding(), 2)


def slow_samples(*, followed):
    return ResumableDataLoader(Even() if followed else Slow(), 8)


def dtypes(*, followed):
    converter = DtypeConverter("float16") if followed else None
    rows = [torch.zeros(2**20, dtype=torch.float64)] * 64
    return ResumableDataLoader(rows, None, num_workers=1, converter=converter)
