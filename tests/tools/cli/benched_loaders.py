"""Loaders that tests compare, as a user's module has them."""

import multiprocessing
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dataporter import ResumableDataLoader
from dataporter.samplers import ResumableSampler


class Rows(Dataset):
    def __init__(self, length=96):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index)), "id": index}


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        yield from (torch.full((8,), number) for number in range(worker, 90, workers))


class Broken(Rows):
    def __getitem__(self, index):
        raise LookupError("the disk is gone")


class NotInWorkers(Rows):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            raise LookupError("not in a worker")
        return super().__getitem__(index)


class NotInOurWorkers(Rows):
    def __getitem__(self, index):
        if multiprocessing.current_process().name.startswith("dataporter worker"):
            raise LookupError("not in ours")
        return super().__getitem__(index)


class NotInTorchsWorkers(Rows):
    def __getitem__(self, index):
        name = multiprocessing.current_process().name
        is_worker = torch.utils.data.get_worker_info() is not None
        if is_worker and not name.startswith("dataporter worker"):
            raise LookupError("not in torch's")
        return super().__getitem__(index)


class HeldInWorkers(Rows):
    """Each worker leaves a file in a folder and hangs."""

    def __getitem__(self, index):
        if (worker := torch.utils.data.get_worker_info()) is not None:
            Path(os.environ["HELD"], str(worker.id)).touch()
            time.sleep(600)
        return super().__getitem__(index)


class BackAndForth:
    """A sampler of the user's own."""

    def __iter__(self):
        return iter([*range(48), *reversed(range(48))])

    def __len__(self):
        return 96


def collate(samples):
    return torch.stack([sample["x"] for sample in samples])


def torchs():
    sys.stdout.write("a line of the user's own\n")
    return DataLoader(Rows(), 8, shuffle=True, num_workers=2)


def ours():
    return ResumableDataLoader(Rows(), 8, shuffle=True, seed=1, collate_fn=collate)


def iterable():
    return DataLoader(Stream(), 8, num_workers=2)


def sampled():
    return DataLoader(Rows(), 8, sampler=BackAndForth())


def weighted():
    return ResumableDataLoader(Rows(), 8, sampler=ResumableSampler(96, weights=range(1, 97)))


def batched():
    return DataLoader(Rows(), batch_sampler=[[1, 2, 3], [4]] * 20)


def single():
    return DataLoader(Rows(), batch_size=None)


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Rows(), 8)


class WithoutLength:
    def __iter__(self):
        return iter(range(len(Rows())))


def without_length():
    return DataLoader(Rows(), 8, sampler=WithoutLength())


def broken():
    return DataLoader(Broken(), 8)


def broken_in_workers():
    return DataLoader(NotInWorkers(), 8, num_workers=1)


def not_ours():
    return DataLoader(NotInOurWorkers(), 8, num_workers=1)


def only_ours():
    return DataLoader(NotInTorchsWorkers(), 8, num_workers=1)


def empty():
    return DataLoader(Rows(0), 8)


def nothing():
    return None


def a_list():
    return [1, 2]


def endless():
    end = time.monotonic() + 600
    while time.monotonic() < end:
        pass


def held():
    """Workers that stay in their first sample."""
    return DataLoader(HeldInWorkers(), 8, num_workers=2)


def crashing():
    os._exit(3)
