"""Samplers of many ranks: they share an epoch, and any number goes on with it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from dataporter import (
    OptionError,
    ResumableDistributedSampler,
    ResumableSampler,
    TopologyError,
)

LENGTH, BATCH = 10, 3


def make(length=LENGTH, seed=5, **options):
    return ResumableSampler(length, seed=seed, **options)


def resumed(state, **options):
    sampler = make(**options)
    sampler.load_state_dict(state)
    return sampler


def state_after(count, **options):
    sampler = make(**options)
    for _ in itertools.islice(sampler, count):
        pass
    return sampler.state_dict()


def ranks(world_size, length=LENGTH, **options):
    return [
        ResumableDistributedSampler(length, num_replicas=world_size, rank=rank, **options)
        for rank in range(world_size)
    ]


tails = st.sampled_from(["pad", "drop", "uneven"])


@given(
    length=st.integers(0, 40),
    world_size=st.integers(1, 5),
    steps=st.integers(0, 12),
    tail=tails,
    shuffle=st.booleans(),
)
def test_the_state_is_the_same_on_every_rank(length, world_size, steps, tail, shuffle):
    samplers = ranks(world_size, length, tail=tail, shuffle=shuffle)
    drawings = [iter(sampler) for sampler in samplers]
    for _ in range(min(steps, *map(len, samplers))):
        for drawing in drawings:
            next(drawing)
        assert all(s.state_dict() == samplers[0].state_dict() for s in samplers)


@given(
    length=st.integers(0, 40),
    world_sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    steps=st.integers(0, 12),
    shuffle=st.booleans(),
)
def test_any_number_of_ranks_continues_what_any_other_began(length, world_sizes, steps, shuffle):
    before, after = (ranks(n, length, tail="uneven", shuffle=shuffle) for n in world_sizes)
    seen = [index for sampler in before for index in itertools.islice(sampler, steps)]
    for sampler in after:
        sampler.load_state_dict(before[0].state_dict())
    assert sorted(seen + [i for sampler in after for i in sampler]) == list(range(length))


@given(length=st.integers(1, 40), world_size=st.integers(1, 5), epoch=st.integers(0, 3))
def test_the_ranks_take_turns_in_the_order_of_one_sampler(length, world_size, epoch):
    whole = ResumableSampler(length, shuffle=True, seed=0)
    whole.set_epoch(epoch)
    order = list(whole)
    for sampler in ranks(world_size, length, shuffle=True, tail="uneven"):
        sampler.set_epoch(epoch)
        assert list(sampler) == order[sampler.rank :: world_size]


@given(length=st.integers(1, 40), world_size=st.integers(1, 5))
def test_in_sequence_the_indices_are_those_of_torchs_distributed_sampler(length, world_size):
    for tail, drop_last in (("pad", False), ("drop", True)):
        for sampler in ranks(world_size, length, tail=tail):
            torchs = DistributedSampler(
                range(length), world_size, sampler.rank, shuffle=False, drop_last=drop_last
            )
            assert list(sampler) == list(torchs)
            assert len(sampler) == len(torchs)


def test_torch_loaders_on_two_ranks_continue_on_three_from_the_state_of_one():
    length, batches = 24, 2
    before = ranks(2, length, shuffle=True, seed=3)
    seen = []
    for sampler in before:
        loader = iter(DataLoader(range(length), BATCH, sampler=sampler))
        seen += [i for _ in range(batches) for i in next(loader).tolist()]
    state = before[0].state_dict()
    assert state["samples_processed"] == len(seen) == 12
    for sampler in ranks(3, length, shuffle=True, seed=3):
        sampler.load_state_dict(state)
        seen += [
            i for batch in DataLoader(range(length), 2, sampler=sampler) for i in batch.tolist()
        ]
    assert sorted(seen) == list(range(length))


def test_one_process_continues_what_many_ranks_began_and_the_reverse():
    many = ranks(2, shuffle=True, seed=5)
    seen = [index for sampler in many for index in itertools.islice(sampler, 3)]
    rest = list(resumed(many[1].state_dict(), shuffle=True))
    assert sorted(seen + rest) == list(range(LENGTH))
    state = state_after(4, shuffle=True)
    for sampler in many:
        sampler.load_state_dict(state)
    alone = list(make(shuffle=True))
    assert sorted(alone[:4] + [i for sampler in many for i in sampler]) == list(range(LENGTH))


def test_each_ranks_samples_change_from_epoch_to_epoch():
    for sampler in ranks(2, 40, shuffle=True):
        assert len({frozenset(sampler) for _ in range(4)}) == 4


def test_weighted_draws_are_shared_among_ranks():
    options = {"weights": np.arange(10.0), "num_samples": 40}
    shares = [list(sampler) for sampler in ranks(2, seed=5, **options)]
    alone = list(make(**options))
    assert shares == [alone[0::2], alone[1::2]]


def test_without_a_process_group_rank_and_number_must_be_given():
    for given_options in ({}, {"rank": 0}, {"num_replicas": 2}):
        with pytest.raises(TopologyError, match="init_process_group"):
            ResumableDistributedSampler(LENGTH, **given_options)


@pytest.mark.parametrize(
    "options", [{"rank": 2}, {"rank": -1}, {"num_replicas": 0}, {"tail": "wrap"}], ids=repr
)
def test_ranks_and_tails_that_cannot_be_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options)).replace("num_replicas", "world")):
        ResumableDistributedSampler(LENGTH, **{"rank": 0, "num_replicas": 2, **options})
