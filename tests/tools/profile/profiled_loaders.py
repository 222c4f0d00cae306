"""Loaders that tests profile, as a user's module has them."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dataporter import ResumableDataLoader
from dataporter.fetch import generators


class Slow(Dataset):
    """Waits a millisecond for a sample, much longer for sample 7."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.15 if index == 7 else 0.001)
        return {"x": torch.zeros(64), "y": index}


class Hiccups(Dataset):
    """Takes long for one fetch of 37, whichever sample that is."""

    fetches = 0

    def __len__(self):
        return 256

    def __getitem__(self, index):
        self.fetches += 1
        time.sleep(0.03 if self.fetches % 37 == 0 else 0.0001)
        return index


class Hoarding(Slow):
    """Keeps a megabyte of each sample."""

    def __init__(self):
        self.kept = []

    def __getitem__(self, index):
        self.kept.append(b"x" * 2**20)
        return index


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(worker, 160, workers):
            time.sleep(0.0005)
            yield torch.full((8,), number)


class Drawing(Slow):
    def __getitem__(self, index):
        return torch.rand(4)


class Broken(Slow):
    def __getitem__(self, index):
        if index == 9:
            raise LookupError("the ninth is missing")
        return index


class Endless(Slow):
    def __getitem__(self, index):
        while index == 9:
            time.sleep(60)
        return index


def slow():
    return ResumableDataLoader(Slow(), 8, num_workers=2)


def hiccups():
    return ResumableDataLoader(Hiccups(), 8, num_workers=1)


def hoarding():
    return ResumableDataLoader(Hoarding(), 2)


def inline():
    return ResumableDataLoader(Slow(), 8)


def with_hidden_generators():
    generators._memory = None  # as find_memory() answers for a release that it does not know
    return inline()


def threads():
    return ResumableDataLoader(Slow(), 8, num_workers=2, engine="threads")


def lanes():
    return ResumableDataLoader(Stream(), 8, num_workers=2)


def torchs():
    return DataLoader(Slow(), 8)


def tokens():
    return ResumableDataLoader(torch.zeros(640, 16), 8, num_workers=1)


def drawing():
    return ResumableDataLoader(Drawing(), 8)


def broken():
    sys.stdout.write("a line of the user's own\n")
    return ResumableDataLoader(Broken(), 4)


def endless():
    return ResumableDataLoader(Endless(), 4, num_workers=1)


def empty():
    return ResumableDataLoader([], 4)


def nothing():
    return None


def crashing():
    os._exit(3)


def failing():
    raise RuntimeError("no such disk")


def hanging():
    time.sleep(600)


def choosy(path):
    return path


number = 3
kept = ResumableDataLoader(range(8), 4)


def not_new():
    return kept
