"""Datasets whose defect is easily taken for another, and clean ones that look like them."""

import functools
import os
import random
import tempfile
import time
import uuid
from datetime import date, datetime

import numpy as np
import torch
from planted import LENGTH, Samples, loader


class Ordered(Samples):
    """Its samples depend on an order that it makes when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.order = self.ordered()

    def __getitem__(self, index):
        return int(self.order[index])


class ShuffledByPython(Ordered):
    def ordered(self):
        order = list(range(LENGTH))
        random.shuffle(order)
        return order


class ShuffledByTorch(Ordered):
    def ordered(self):
        return torch.randperm(LENGTH)


class Seconds(Ordered):
    def ordered(self):
        return int(time.time()) + np.arange(LENGTH)


class Minutes(Ordered):
    def ordered(self):
        return int(time.time()) // 60 + np.arange(LENGTH)


class Days(Ordered):
    def ordered(self):
        return date.today().toordinal() + np.arange(LENGTH)  # noqa: DTZ011  the defect


class Months(Ordered):
    def ordered(self):
        return datetime.now().month + np.arange(LENGTH)  # noqa: DTZ005  the defect


CLASSES = list({type(f"Class{number}", (), {}) for number in range(LENGTH)})


class OrderOfClasses(Ordered):
    def ordered(self):
        return [int(kind.__name__[5:]) for kind in CLASSES]


class Uuids(Samples):
    def __getitem__(self, index):
        return str(uuid.uuid1())


class Slotted(Samples):
    __slots__ = ("calls",)

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __getitem__(self, index):
        self.calls += 1
        return self.calls


class DiesOfAStoppedClock(Slotted):
    def __init__(self) -> None:
        super().__init__()
        if time.monotonic() == time.monotonic():
            os._exit(1)


class FailsWithAStoppedClock(Slotted):
    def __getitem__(self, index):
        began = time.perf_counter_ns()
        sample = super().__getitem__(index)
        self.speed = 1 / (time.perf_counter_ns() - began)
        return sample


class Timed(Samples):
    """Measures what it does, as a log would have it."""

    def __getitem__(self, index):
        began = time.time(), time.perf_counter()
        sample = super().__getitem__(index)
        self.seconds = time.time() - began[0], time.perf_counter() - began[1]
        if not all(0 <= seconds < 1000 for seconds in self.seconds):
            raise ValueError(self.seconds)
        return sample


class ValidForAnHour(Samples):
    """Asks somebody with a clock of his own, as one who signs a request does."""

    def __getitem__(self, index):
        with tempfile.TemporaryFile() as file:
            if abs(time.time() - os.fstat(file.fileno()).st_mtime) > 3600:
                raise PermissionError("not valid")
        return super().__getitem__(index)


class UnseededSampler:
    def __iter__(self):
        return iter(np.random.default_rng().permutation(LENGTH).tolist())

    def __len__(self):
        return LENGTH


def made(name: str):
    if name == "sampler":
        return loader(Samples(), sampler=UnseededSampler())
    return loader(globals()[name](), shuffle=True)


def make(name: str):
    return functools.partial(made, name)
