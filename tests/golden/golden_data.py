"""Datasets and samplers of the golden states. Their names are in states: never change them."""

import functools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from dataporter import sample_rng
from dataporter.law import Order
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as sharded


class Ids(Dataset):
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index


class Augmented(Ids):
    """Sample i is i and a number from each generator."""

    def __getitem__(self, index: int) -> Any:
        drawn = random.random(), float(np.random.random_sample()), float(torch.rand(()))
        return index, *drawn, int(sample_rng().integers(2**40))


class Buffer(Ids):
    """Grows by as many samples as it is told."""

    def grow(self, count: int) -> None:
        self.length += count


class Counting(Ids):
    """Read by index; its samples depend on how many were read, which is its state."""

    read = 0

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return index, self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class Numbers(IterableDataset):
    """Lane l of L yields 100 l, 100 l + 1, ...: 7 numbers, and one more for each lane. No state."""

    i = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        lane = 0 if info is None else info.id
        first, self.i = self.i, 0
        for number in range(first, 7 + lane):
            self.i = number + 1
            yield 100 * lane + number
        self.i = 0


class NumbersWithState(Numbers):
    """The same; the dataset knows its place."""

    def state_dict(self) -> dict[str, int]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.i = state["i"]


class NumbersThatDraw(NumbersWithState):
    """The same; every third number, beginning with the third, is drawn from each generator."""

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            if number % 100 % 3 != 2:
                yield number, 0.0, 0.0, 0.0, 0
            else:
                drawn = random.random(), float(np.random.random_sample()), float(torch.rand(()))
                yield number, *drawn, int(sample_rng().integers(2**40))


class NumbersWithStatefulIterator(Numbers):
    """The same; the iterator knows its place."""

    def __iter__(self) -> Iterator[int]:
        return _Counted(list(super().__iter__()))


class _Counted(Iterator[int]):
    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self.i = numbers, 0

    def __next__(self) -> int:
        if self.i == len(self.numbers):
            raise StopIteration
        self.i += 1
        return self.numbers[self.i - 1]

    def state_dict(self) -> dict[str, int]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.i = state["i"]


class Walk(Sampler[int]):
    """Draws lazily from a generator of its own, which its state contains."""

    def __init__(self, high: int, limit: int) -> None:
        self.high, self.limit, self.drawn = high, limit, 0
        self.generator = torch.Generator().manual_seed(5)

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


class Backwards(Sampler[list[int]]):
    """A batch sampler without a state: batches of 3, from the end."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        for stop in range(self.length, 0, -3):
            yield list(range(max(stop - 3, 0), stop))

    def __len__(self) -> int:
        return (self.length + 2) // 3


class Files(ShardedDataset):
    """Sample i is i, in files of 1 to 37 lines, ordered by tracks although it is small."""

    def __init__(self) -> None:
        super().__init__(_numbered_files().name, transform=lambda line: line["id"])

    def epoch_order(self, **asked: Any) -> Order:
        with patch.object(sharded, "SMALL", 0):
            return super().epoch_order(**asked)


@functools.cache
def _numbered_files() -> tempfile.TemporaryDirectory[str]:
    """Write the files once, for as long as this process runs."""
    folder, first = tempfile.TemporaryDirectory(), 0
    for file in range(37):
        after = first + 1 + file * 13 % 37
        lines = [json.dumps({"id": number}) + "\n" for number in range(first, after)]
        Path(folder.name, f"{file:02}.jsonl").write_text("".join(lines))
        first = after
    return folder
