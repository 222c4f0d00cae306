"""Loaders of torch and torchdata, as people have them before they switch."""

import functools
import random
import warnings

import torch
from planted import LENGTH, OwnGenerator, Samples
from torch.utils.data import DataLoader, IterableDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchdata.stateful_dataloader import StatefulDataLoader


class Augmented(Samples):
    def __getitem__(self, index):
        return {"x": self.data[index] + torch.rand(2), "index": index}


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(LENGTH))


class NewOrder:
    """Draws another order at each pass, and has no state."""

    def __iter__(self):
        return iter(random.sample(range(LENGTH), LENGTH))

    def __len__(self):
        return LENGTH


def seeded():
    torch.manual_seed(5)
    return DataLoader(Augmented(), 4, shuffle=True)


def make(kind: str):
    """Make the loader of that name."""
    made = {
        "shuffled": lambda: DataLoader(Augmented(), 4, shuffle=True, num_workers=1),
        "seeded": seeded,
        "sequential": lambda: DataLoader(Samples(), 4),
        "streamed": lambda: DataLoader(Numbers(), 4),
        "own generator": lambda: DataLoader(OwnGenerator(), 4),
        "stateful": lambda: StatefulDataLoader(Augmented(), 4, shuffle=True, num_workers=1),
        "stateful, plain": lambda: StatefulDataLoader(Samples(), 4, shuffle=True),
        "stateful, streamed": lambda: StatefulDataLoader(Numbers(), 4),
        "stateful, new order": lambda: StatefulDataLoader(Samples(), 4, sampler=NewOrder()),
    }
    return made[kind]()


def maker(kind: str):
    return functools.partial(make, kind)
