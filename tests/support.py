"""Datasets and small functions that many tests share."""

import multiprocessing
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from dataporter import ResumableDataLoader, sample_rng
from dataporter.law.state import Identity

# What tests have workers do is defined where it is used, often inside of a function: only a fork
# takes that along. It is the default up to Python 3.13; tests of other start methods name them.
if multiprocessing.get_start_method(allow_none=True) is None:
    multiprocessing.set_start_method("fork")


# What a state says of an unshuffled dataset of 1,000 samples, in batches of 2 on 2 ranks.
SEQUENTIAL = Identity(
    seed=1,
    shuffle=False,
    order="sequential",
    num_samples=1_000,
    fingerprint=None,
    batch_size=2,
    world_size=2,
)


class Ids(Dataset):
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index


class CountedIds(Ids):
    """Counts how often each sample is fetched."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.fetched: list[int] = []

    def __getitem__(self, index: int) -> int:
        self.fetched.append(index)
        return super().__getitem__(index)


class Augmented(Ids):
    """Sample i is i and numbers drawn from the generators that are named."""

    def __init__(self, length: int, draws: str = "python numpy torch own") -> None:
        super().__init__(length)
        self.draws = draws.split()

    def __getitem__(self, index: int) -> tuple[int, list[float]]:
        drawn = {
            "python": random.random,
            "gauss": lambda: random.gauss(0.0, 1.0),
            "numpy": lambda: float(np.random.standard_normal()),
            "torch": lambda: torch.rand(()).item(),
            "own": lambda: float(sample_rng().random()),
        }
        return index, [drawn[name]() for name in self.draws]


class Stateless(Sampler):
    """Shuffles by the global torch generator, as torch's own samplers do."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length).tolist())

    def __len__(self) -> int:
        return self.length


class Stateful(Sampler):
    """Draws lazily from a generator of its own, which its state contains."""

    def __init__(self, high: int, limit: int, seed: int = 1) -> None:
        self.high, self.limit = high, limit
        self.drawn = 0
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        while self.drawn < self.limit:
            self.drawn += 1
            yield int(torch.randint(self.high, (), generator=self.generator))
        self.drawn = 0

    def __len__(self) -> int:
        return self.limit

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]
        self.generator.set_state(state["generator"])


def plain(batch: Any) -> Any:
    """A batch as builtins, so that == compares it bit by bit."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [plain(value) for value in batch]
    return batch


def one_pass(loader: Iterable[Any]) -> list[Any]:
    return [plain(batch) for batch in loader]


def passes(loader: DataLoader, count: int) -> list[list[Any]]:
    return [one_pass(loader) for _ in range(count)]


def flat(batches: Iterable[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def pass_with_states(loader: ResumableDataLoader) -> tuple[list[Any], list[dict[str, Any]]]:
    """One pass, and the state before it, after each batch and after its end."""
    batches, states = [], [loader.state_dict()]
    for batch in loader:
        batches.append(plain(batch))
        states.append(loader.state_dict())
    states.append(loader.state_dict())
    return batches, states
