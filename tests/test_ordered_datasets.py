"""Datasets that bring an order of their own, through the public protocol."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import flat

from dataporter import Order, OrderedDataset, ResumableDataLoader, ResumableSampler
from dataporter.errors import StateMismatchError


@dataclass(frozen=True)
class Backwards(Order):
    """From the end to the start, in runs of so many; the run's length is a parameter."""

    length: int
    seed: int
    run: int
    told: list

    @property
    def id(self):
        return f"backwards-1 {self.run}"

    def indices(self, epoch, positions):
        self.told.append(("indices", epoch, positions))
        return self.length - 1 - positions

    def with_seed(self, seed):
        return replace(self, seed=seed)

    def resumed(self, saved_id):
        name, _, run = saved_id.partition(" ")
        return replace(self, run=int(run)) if name == "backwards-1" else self

    def deal(self, epoch, positions):  # noqa: ARG002
        return positions // self.run % 2 / 2

    leaves = frozenset({"numbers"})


class Numbers:
    leaf = "numbers"

    def __init__(self, length):
        self.length = length
        self.asked = []
        self.told = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index

    def epoch_order(self, *, shuffle, seed, step_size, world_size):
        self.asked.append((shuffle, step_size, world_size))
        return Backwards(self.length, seed, step_size, self.told)

    def announce(self, order, epoch, start, stop, plan):
        assert order.leaves == {self.leaf}
        self.told.append(("announce", epoch, (start, stop, plan)))


def loader_of(length, batch_size, rank=0, world_size=1, **options):
    return ResumableDataLoader(
        Numbers(length), batch_size, rank=rank, world_size=world_size, seed=1, **options
    )


def test_a_loader_follows_the_order_of_its_dataset():
    loader = loader_of(10, 4)
    assert isinstance(loader.dataset, OrderedDataset)
    assert flat(loader) == list(range(9, -1, -1))


def test_workers_follow_it_too():
    assert flat(loader_of(10, 4, num_workers=2)) == list(range(9, -1, -1))


def test_the_dataset_hears_of_the_step_and_of_the_ranks():
    loader = loader_of(30, 4, rank=1, world_size=3, shuffle=True)
    assert loader.dataset.asked[-1] == (True, 12, 3)


@given(
    length=st.integers(1, 40_000),
    world_size=st.integers(1, 3),
    batch_size=st.integers(1, 4000),
    data=st.data(),
)
@settings(max_examples=30)
def test_steps_are_announced_before_they_are_read(length, world_size, batch_size, data):
    rank, start = data.draw(st.integers(0, world_size - 1)), data.draw(st.integers(0, length - 1))
    loader = loader_of(length, batch_size, rank, world_size)
    loader.seek(2, start)
    for _ in loader:
        pass
    told = loader.dataset.told
    announced = [each for what, epoch, each in told if (what, epoch) == ("announce", 2)]
    begins, ends = [begin for begin, _, _ in announced], [end for _, end, _ in announced]
    # Batches are read one by one here, so all before an announcement has been delivered.
    assert begins == [start, *ends[:-1]]
    assert ends[-1] == length
    step = world_size * batch_size
    assert all(0 < end - begin <= max(512, step) for begin, end, _ in announced)


def test_a_step_is_dealt_as_the_order_says():
    loaders = [loader_of(16, 2, rank, 2) for rank in range(2)]
    # A step of 4 positions is one run: all numbers are equal, so ranks take halves.
    assert [flat(loader) for loader in loaders] == [
        [15, 14, 11, 10, 7, 6, 3, 2],
        [13, 12, 9, 8, 5, 4, 1, 0],
    ]


def test_a_state_brings_the_parameters_of_its_order():
    loader = loader_of(20, 4)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["order"] == "backwards-1 4"
    other = loader_of(20, 5)
    other.load_state_dict(state)
    assert flat(other) == list(range(15, -1, -1))
    assert other.state_dict()["order"] == "backwards-1 4"


def test_a_state_of_another_order_is_refused():
    plain = ResumableDataLoader(list(range(20)), 4, seed=1)
    next(iter(plain))
    with pytest.raises(StateMismatchError, match="order changed"):
        loader_of(20, 4).load_state_dict(plain.state_dict())


@settings(deadline=None, max_examples=50)
@given(
    length=st.integers(1, 60),
    runs=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=4
    ),
)
def test_any_chain_of_topologies_delivers_every_sample_once(length, runs):
    state, seen, position = None, [], 0
    for number, (world_size, batch_size, steps) in enumerate(runs):
        loaders = [
            loader_of(length, batch_size, rank, world_size, tail="uneven")
            for rank in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        if number == len(runs) - 1:
            seen += [index for iterator in iterators for index in flat(iterator)]
            break
        whole = (length - position) // (world_size * batch_size)
        for _ in range(min(steps, whole)):
            seen += [index for iterator in iterators for index in next(iterator).tolist()]
        states = [loader.state_dict() for loader in loaders]
        assert all(each == states[0] for each in states)
        state, position = states[0], states[0]["samples_processed"]
    assert sorted(seen) == list(range(length))


def test_a_sampler_over_such_a_dataset_works_in_torchs_loader():
    dataset = Numbers(10)
    sampler = ResumableSampler(dataset, seed=1)
    loader = torch.utils.data.DataLoader(dataset, batch_size=5, sampler=sampler)
    assert flat(loader) == list(range(9, -1, -1))
    assert np.array_equal(list(ResumableSampler(dataset, seed=1)), np.arange(9, -1, -1))
