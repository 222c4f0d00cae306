"""Iterable datasets of every kind of state, and what a loader must deliver of them."""

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from support import pass_with_states
from torch.utils.data import IterableDataset, get_worker_info

from dataporter import ResumableDataLoader, sample_rng
from dataporter.errors import FastForwardWarning


def lane_and_count() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Shards(IterableDataset):
    """Shards of unequal length; lane l of L reads every L-th. No state.

    Sample j of shard s is 100 s + j, and with `noisy` what it drew from all generators.
    """

    def __init__(self, lengths: Sequence[int], *, noisy: bool = False) -> None:
        self.lengths = list(lengths)
        self.noisy = noisy

    def samples(self) -> list[int]:
        lane, count = lane_and_count()
        shards = range(lane, len(self.lengths), count)
        return [100 * shard + j for shard in shards for j in range(self.lengths[shard])]

    def shown(self, sample: int) -> Any:
        if not self.noisy:
            return sample
        drawn = random.random(), float(np.random.standard_normal()), float(torch.rand(()))
        return sample, *drawn, float(sample_rng().random())

    def __iter__(self) -> Iterator[Any]:
        for sample in self.samples():
            yield self.shown(sample)


class StatefulShards(Shards):
    """Its state is that of the dataset, as in torchdata's tutorial."""

    i = 0

    def __iter__(self) -> Iterator[Any]:
        samples = self.samples()
        for i in range(self.i, len(samples)):
            self.i += 1
            yield self.shown(samples[i])
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i = state["i"]


class _ShardsIterator:
    def __init__(self, shards: Shards, start: int = 0) -> None:
        self.shards, self.all, self.i = shards, shards.samples(), start

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.i >= len(self.all):
            raise StopIteration
        self.i += 1
        return self.shards.shown(self.all[self.i - 1])


class _StatefulIterator(_ShardsIterator):
    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i = state["i"]


class IteratorShards(Shards):
    """Only its iterators have a state."""

    def __iter__(self) -> Iterator[Any]:
        return _StatefulIterator(self)


class BothShards(Shards):
    """The dataset counts its passes, which decide their order; the iterator knows the place."""

    passes = 0

    def samples(self) -> list[int]:
        samples = super().samples()
        turned = self.passes % max(len(samples), 1)
        return samples[turned:] + samples[:turned]

    def __iter__(self) -> Iterator[Any]:
        return _Counting(self)

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes = state["passes"]


class _Counting(_StatefulIterator):
    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self.shards.passes += 1
            raise


class OwnIterator(Shards):
    """It is its own iterator, and begins anew by itself as soon as it has ended."""

    i = 0
    iterated = 0

    def __iter__(self) -> Iterator[Any]:
        self.iterated += 1
        return self

    def __next__(self) -> Any:
        samples = self.samples()
        if self.i >= len(samples):
            self.i = 0
            raise StopIteration
        self.i += 1
        return self.shown(samples[self.i - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "iterated": self.iterated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i, self.iterated = state["i"], state["iterated"]


class MutatingShards(Shards):
    """Its state is one object, which it goes on changing."""

    def __init__(self, lengths: Sequence[int], **options: Any) -> None:
        super().__init__(lengths, **options)
        self.state = {"at": [0]}

    def __iter__(self) -> Iterator[Any]:
        samples = self.samples()
        while self.state["at"][0] < len(samples):
            self.state["at"][0] += 1
            yield self.shown(samples[self.state["at"][0] - 1])
        self.state["at"][0] = 0

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class LateShards(Shards):
    """A loaded state takes effect, and shows, only once something is read."""

    i = 0
    loaded = 0

    def __iter__(self) -> Iterator[Any]:
        samples = self.samples()
        self.i, self.loaded = self.loaded, 0
        while self.i < len(samples):
            self.i += 1
            yield self.shown(samples[self.i - 1])
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["i"]


class CarryingShards(StatefulShards):
    """Its generator goes on from epoch to epoch, and decides what a sample is."""

    def __init__(self, lengths: Sequence[int], **options: Any) -> None:
        super().__init__(lengths, **options)
        self.generator = torch.Generator().manual_seed(5)

    def shown(self, sample: int) -> Any:
        drawn = int(torch.randint(1000, (), generator=self.generator))
        return super().shown(sample), drawn

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i = state["i"]
        self.generator.set_state(state["generator"])


class CarryingIterator(OwnIterator):
    """Likewise, and it is its own iterator."""

    drawn = 0

    def shown(self, sample: int) -> Any:
        self.drawn = (self.drawn * 31 + sample + 1) % 1009
        return super().shown(sample), self.drawn

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.drawn = state["drawn"]


class Packed(Shards):
    """Filters, shuffles in a buffer by the global generator, and packs pairs; with a state."""

    def __init__(self, lengths: Sequence[int], **options: Any) -> None:
        super().__init__(lengths, **options)
        self.at, self.buffer, self.half = 0, [], []

    def __iter__(self) -> Iterator[Any]:
        samples = [sample for sample in self.samples() if sample % 3]
        while self.at < len(samples) or self.buffer:
            if self.at < len(samples) and len(self.buffer) < 4:
                self.buffer.append(samples[self.at])
                self.at += 1
                continue
            self.half.append(self.buffer.pop(random.randrange(len(self.buffer))))
            if len(self.half) == 2:
                pair, self.half = self.half, []
                yield self.shown(1000 * pair[0] + pair[1])
        self.at, self.half = 0, []

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "buffer": self.buffer, "half": self.half}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.buffer, self.half = state["at"], state["buffer"], state["half"]


class PackedWithoutState(Shards):
    """The same in a generator, without a state."""

    def __iter__(self) -> Iterator[Any]:
        inner = Packed(self.lengths, noisy=self.noisy)
        yield from inner


WITH_STATE = [
    StatefulShards,
    IteratorShards,
    BothShards,
    OwnIterator,
    MutatingShards,
    LateShards,
    Packed,
]
WITHOUT_STATE = [Shards, PackedWithoutState]
CARRYING = [CarryingShards, CarryingIterator, BothShards]


def in_turn(lengths: Sequence[int], lanes: int, size: int, *, drop_last: bool = False) -> list:
    """What a pass over shards delivers: batches of the lanes in turn, those ended left out."""
    each = []
    for lane in range(lanes):
        samples = [
            100 * shard + j
            for shard in range(lane, len(lengths), lanes)
            for j in range(lengths[shard])
        ]
        batches = [samples[start : start + size] for start in range(0, len(samples), size)]
        each.append([batch for batch in batches if len(batch) == size or not drop_last])
    longest = max(map(len, each))
    return [batches[i] for i in range(longest) for batches in each if i < len(batches)]


@contextmanager
def reading_again(kind: type) -> Any:
    """Expect the warning of datasets without a state, and none of others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FastForwardWarning)
        yield caught
    assert all(issubclass(warning.category, FastForwardWarning) for warning in caught)
    assert kind in WITHOUT_STATE or not caught


def loaded(state: Any, dataset: IterableDataset, **options: Any) -> ResumableDataLoader:
    loader = ResumableDataLoader(dataset, seed=3, **options)
    with reading_again(type(dataset)):
        loader.load_state_dict(state)
    return loader


def reference(dataset: IterableDataset, epochs: int = 2, **options: Any) -> Any:
    """Epochs, and the states before, within and after each."""
    loader = ResumableDataLoader(dataset, seed=3, **options)
    batches, states = zip(*(pass_with_states(loader) for _ in range(epochs)), strict=True)
    return list(batches), list(states)
