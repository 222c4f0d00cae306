"""Loaders that resume exactly, and loaders over datasets that are wrong in one way each."""

import functools
import os
import random
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from dataporter import ResumableDataLoader, sample_rng

LENGTH = 40


class Samples(Dataset):
    """Sample i is two numbers of its own."""

    def __init__(self) -> None:
        self.data = torch.arange(2.0 * LENGTH).reshape(LENGTH, 2)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return {"x": self.data[index], "index": index}


def loader(dataset: Any, **options: Any) -> ResumableDataLoader:
    options = {"batch_size": 4, "seed": 3, **options}
    return ResumableDataLoader(dataset, **options)


# Wrong in one way each


class OwnGenerator(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng()

    def __getitem__(self, index):
        return self.data[index] + self.rng.normal()


MODULES = random.Random(7)


class ModulesGenerator(Samples):
    def __getitem__(self, index):
        return self.data[index] + MODULES.random()


class Clock(Samples):
    def __getitem__(self, index):
        return {"x": self.data[index], "read_at": time.time_ns()}


class LateClock(Samples):
    """One sample only depends on the time."""

    def __getitem__(self, index):
        return self.data[index] + (time.time() % 1 if index == 31 else 0)


class ProcessId(Samples):
    def __getitem__(self, index):
        return self.data[index] + os.getpid()


class CallCounter(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __getitem__(self, index):
        self.calls += 1
        return self.data[index] / self.calls


class ClassCounter(Samples):
    calls = 0  # hidden by one of its own from the first call on

    def __getitem__(self, index):
        self.calls += 1
        return self.data[index] / self.calls


class InPlace(Samples):
    def __getitem__(self, index):
        self.data[index] *= 2
        return self.data[index]


class AugmentedCache(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.cache = {}

    def __getitem__(self, index):
        before = self.cache.get(index, self.data[index])
        self.cache[index] = before + torch.rand(2)
        return self.cache[index]


class CountsBesides(Samples):
    """Keeps what it has read and counts that, both harmless, and changes its data."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.reads = {}, 0

    def __getitem__(self, index):
        self.reads += 1
        self.kept[index] = self.data[index].clone()
        self.data[index] += 1
        return self.data[index]


class CachedAugmentation(Samples):
    """Keeps each sample as it was augmented the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = {}

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.data[index] + torch.rand(2)
        return self.cache[index]


class ListedAugmentation(CachedAugmentation):
    """Has a place for each sample from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [None] * LENGTH

    def __getitem__(self, index):
        if self.kept[index] is None:
            self.kept[index] = self.data[index] + torch.rand(2)
        return self.kept[index]


@functools.lru_cache
def augmented(index):
    return index + random.random()


class LruCached(Samples):
    def __getitem__(self, index):
        return self.data[index] + augmented(index)


class LruCachedMethod(Samples):
    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  as people write it
    def __getitem__(self, index):
        return self.data[index] + random.random()


class LazyGenerator(Samples):
    """Makes its generator when it is first needed, from the worker's seed."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = None

    def __getitem__(self, index):
        if self.rng is None:
            info = get_worker_info()
            self.rng = np.random.default_rng(0 if info is None else info.seed)
        return self.data[index] + self.rng.normal()


class WorkerSeed(Samples):
    def __getitem__(self, index):
        info = get_worker_info()
        seed = 0 if info is None else info.seed
        return self.data[index] + np.random.default_rng([seed, index]).normal()


class NeedsWorkerSeed(Samples):
    def __getitem__(self, index):
        return self.data[index] + np.random.default_rng([get_worker_info().seed, index]).normal()


class FallsOver(Samples):
    """Cannot be read twice in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.read = set()

    def __getitem__(self, index):
        if index in self.read:
            raise OSError("gone")
        self.read.add(index)
        return self.data[index]


class HashOfStrings(Samples):
    def __getitem__(self, index):
        return self.data[index] + hash(f"sample {index}") % 1000


class OrderOfSet(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.labels = list({f"class {number}" for number in range(LENGTH)})

    def __getitem__(self, index):
        return self.labels[index]


class HalfUnreadable(Samples):
    """What the other rank reads cannot be read."""

    def __getitem__(self, index):
        if index % 2 == 0:
            raise OSError("not this one")
        return self.data[index]


class OrderOfTwo(Samples):
    """A set of two strings is in the same order in every second interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = list({"male", "female"})

    def __getitem__(self, index):
        return self.labels[index % 2]


class OtherLength(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.length = LENGTH + time.time_ns() // 1000 % 1000

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.data[index % LENGTH]


class Unseeded(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.noise = np.random.default_rng().normal(size=LENGTH)

    def __getitem__(self, index):
        return self.data[index] + self.noise[index]


def collate_by_worker(samples):
    info = get_worker_info()
    return torch.stack([s["x"] for s in samples]) + (0 if info is None else info.id)


def mark_worker(worker):
    get_worker_info().dataset.data += worker


class ShuffledInPlace(IterableDataset):
    """Every pass shuffles what the last one has left."""

    def __init__(self) -> None:
        self.items = list(range(20))

    def __iter__(self):
        random.shuffle(self.items)
        return iter(self.items)


class Streamed(IterableDataset):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = random.Random()

    def __iter__(self):
        return (number + self.rng.random() for number in range(20))


class StateWithoutBuffer(IterableDataset):
    """Yields pairs in reverse; what waits of a pair is not in its state."""

    def __init__(self) -> None:
        self.at = 0
        self.waiting = []

    def __iter__(self):
        while self.at < LENGTH or self.waiting:
            if not self.waiting:
                self.waiting = [self.at, self.at + 1, self.at + 2, self.at + 3, self.at + 4]
                self.at += 5
            yield self.waiting.pop()
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class OnlyOnce(IterableDataset):
    """Its numbers come once, and then never again."""

    def __init__(self) -> None:
        self.numbers = iter(range(5))

    def __iter__(self):
        return self.numbers


class StateInBytes(IterableDataset):
    """Its state counts bytes, and is taken for a count of lines: no line is left after that."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        while self.at < LENGTH:
            self.at += 1
            yield torch.tensor([self.at])

    def state_dict(self):
        return {"at": self.at * 128}

    def load_state_dict(self, state):
        self.at = state["at"]


class CountingSampler:
    """Every pass begins one index later, and nobody puts that back."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([(index + self.passes) % LENGTH for index in range(LENGTH)])

    def __len__(self):
        return LENGTH


def wrong(name: str):
    """Make the loader that is wrong in the way of that name."""
    others = {
        "collate": lambda: loader(Samples(), collate_fn=collate_by_worker, num_workers=2),
        "needs worker": lambda: loader(NeedsWorkerSeed(), num_workers=2),
        "falls over": lambda: loader(FallsOver()),
        "late": lambda: loader(LateClock()),
        "half unreadable": lambda: loader(
            HalfUnreadable(), rank=1, world_size=2, strategy="distributed"
        ),
        "init": lambda: loader(Samples(), worker_init_fn=mark_worker, num_workers=2),
        "seed": lambda: loader(Samples(), seed=time.time_ns()),
        "shuffled in place": lambda: loader(ShuffledInPlace()),
        "streamed generator": lambda: loader(Streamed(), num_workers=2),
        "state": lambda: loader(StateWithoutBuffer()),
        "bytes": lambda: loader(StateInBytes()),
        "bytes in a worker": lambda: loader(StateInBytes(), num_workers=1, persistent_workers=True),
        "bytes in threads": lambda: loader(StateInBytes(), engine="threads"),
        "sampler": lambda: loader(Samples(), sampler=CountingSampler()),
        "randomness": lambda: loader(Drawing(), randomness=False),
    }
    return others[name]() if name in others else loader(globals()[name](), shuffle=True)


def make_wrong(name: str):
    return functools.partial(wrong, name)


# Clean


class Drawing(Samples):
    """Augmented from all generators that dataporter looks after."""

    def __getitem__(self, index):
        drawn = random.random() + np.random.random() + float(torch.rand(()))
        return self.data[index] + drawn + sample_rng().random()


class Keyed(Samples):
    """Augmented from the sample's own generator, and collated into something else."""

    def __getitem__(self, index):
        return index, sample_rng().normal(size=3)


class Pair(NamedTuple):
    index: torch.Tensor
    longest: int
    noise: np.ndarray
    names: set[str]


def collate_pairs(samples):
    """A batch that depends on which samples are in it, and has a set of strings."""
    indices = torch.tensor([index for index, _ in samples])
    noise, names = np.stack([noise for _, noise in samples]), {f"sample {i}" for i in indices}
    return Pair(indices, int(indices.max()), noise, names)


class Texts(Samples):
    def __getitem__(self, index):
        return {"text": f"sample {index}", "length": len(str(index)), "tags": ["a", str(index)]}


class Counting(IterableDataset):
    """Its iterator has a state; lanes share the numbers out."""

    def __iter__(self):
        info = get_worker_info()
        lane, lanes = (0, 1) if info is None else (info.id, info.num_workers)
        return CountingFrom(lane, lanes)


class CountingFrom:
    def __init__(self, at, step) -> None:
        self.at, self.step = at, step

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= LENGTH:
            raise StopIteration
        self.at += self.step
        return torch.tensor([self.at - self.step, random.random()])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Stateless(IterableDataset):
    def __iter__(self):
        return (number + random.random() for number in range(LENGTH))


def clean(name: str):
    """Make the loader of that name, which resumes exactly."""
    made = {
        "tensors": lambda: loader(torch.arange(LENGTH * 3.0).reshape(LENGTH, 3), shuffle=True),
        "drawing": lambda: loader(Drawing(), shuffle=True, num_workers=2),
        "texts": lambda: loader(Texts(), drop_last=True, seed=None),
        "counting": lambda: loader(Counting(), num_workers=2),
        "stateless": lambda: loader(Stateless()),
        "keyed": lambda: loader(Keyed(), shuffle=True, collate_fn=collate_pairs),
        "ranked": lambda: loader(Drawing(), rank=1, world_size=2, strategy="distributed"),
        "single": lambda: loader(Drawing(), batch_size=None),
    }
    return made[name]()


def make_clean(name: str):
    return functools.partial(clean, name)
