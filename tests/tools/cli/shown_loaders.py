"""Loaders of which `dataporter show` shows a batch."""

import torch
from support import Augmented, Ids, Stateless
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dataporter import ResumableDataLoader, StatefulDataLoader
from dataporter.views import LengthBatches


class Pictures(Dataset):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index):
        image = torch.rand(3, 8, 8)
        return {"image": image, "label": index, "text": f"<b>{index}</b>"}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


def pictures():
    return ResumableDataLoader(Pictures(), 4, shuffle=True, seed=3, num_workers=2)


def augmented():
    return ResumableDataLoader(Augmented(40), 7, shuffle=True, seed=5, num_workers=2)


def by_length():
    lengths = [3, 9, 4, 8, 5, 7] * 5
    return ResumableDataLoader(Ids(30), batch_sampler=LengthBatches(lengths, max_tokens=16))


def without_seed():
    return ResumableDataLoader(Ids(10), 4, shuffle=True)


def torchdatas():
    return StatefulDataLoader(Ids(10), 4)


def torchs():
    return DataLoader(Ids(10), 4)


def stream():
    return ResumableDataLoader(Stream(), 4)


def sampled():
    return ResumableDataLoader(Ids(10), 4, sampler=Stateless(10))
