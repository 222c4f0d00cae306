"""How ranks share a step by the numbers of an order."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataporter.law import Plan, Topology
from dataporter.law.keys import mix

tails = st.sampled_from(["pad", "drop", "uneven"])


@st.composite
def shared(draw):
    """Plans of all ranks, a start and a way to deal."""
    length = draw(st.integers(0, 150))
    world_size, batch_size = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    tail, key, kinds = draw(tails), draw(st.integers(0, 2**32)), draw(st.integers(1, 20))
    plans = [
        Plan(length=length, batch_size=batch_size, topology=topology, tail=tail)
        for topology in (Topology(rank=r, world_size=world_size) for r in range(world_size))
    ]

    def deal(positions):
        return (mix(key, positions) % np.uint64(kinds)) / kinds

    return plans, draw(st.integers(0, length)), deal


def batches_of(plan, start, deal):
    return [batch.tolist() for batch in plan.batches(start, deal)]


@given(shared())
def test_a_dealt_step_takes_the_positions_that_a_step_by_stride_takes(run):
    plans, start, deal = run
    dealt = [batches_of(plan, start, deal) for plan in plans]
    strided = [batches_of(plan, start, None) for plan in plans]
    for step in range(max(map(len, strided), default=0)):
        taken, expected = (
            sorted(p for batches in ranks for batch in batches[step : step + 1] for p in batch)
            for ranks in (dealt, strided)
        )
        assert taken == expected


@given(shared())
def test_dealing_gives_each_rank_as_many_batches_and_samples_as_the_plan_says(run):
    plans, start, deal = run
    for plan in plans:
        sizes = [len(batch) for batch in batches_of(plan, start, deal)]
        assert sizes == [len(batch) for batch in batches_of(plan, start, None)]
        assert (len(sizes), sum(sizes)) == (plan.num_batches(start), plan.num_samples(start))


@given(shared())
def test_a_later_rank_never_has_a_lower_number(run):
    plans, start, deal = run
    if len(plans) == 1:
        return
    for step in zip(*(batches_of(plan, start, deal) for plan in plans), strict=False):
        numbers = [deal(np.array(batch, dtype=np.int64)) for batch in step]
        filled = [each for each in numbers if len(each)]
        assert all(a.max() <= b.min() for a, b in itertools.pairwise(filled))


@given(shared())
def test_one_rank_takes_the_positions_in_their_order_whatever_the_numbers(run):
    plans, start, deal = run
    alone = Plan(length=plans[0].length, batch_size=plans[0].batch_size, tail=plans[0].tail)
    assert batches_of(alone, start, deal) == batches_of(alone, start, None)


@pytest.mark.parametrize("batch_size", [1, 7, 5000])
def test_long_epochs_are_dealt_in_blocks_as_they_are_in_steps(batch_size):
    topology = Topology(rank=1, world_size=3)
    plan = Plan(length=40_000, batch_size=batch_size, topology=topology)

    def deal(positions):
        return positions % 11 / 11

    expected = []
    for first in range(0, plan.length - plan.step_size + 1, plan.step_size):
        step = np.arange(first, first + plan.step_size)
        mine = step[np.argsort(deal(step), kind="stable")][batch_size : 2 * batch_size]
        expected.append(mine.tolist())
    assert batches_of(plan, 0, deal)[: len(expected)] == expected


@settings(max_examples=30)
@given(
    st.integers(2, 40),
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 7, 20_000]),
    st.booleans(),
    st.data(),
)
def test_a_share_that_is_found_is_the_one_that_sorting_all_of_a_large_step_gives(
    world_size, key, kinds, crowded, data
):
    rank = data.draw(st.integers(0, world_size - 1))
    batch_size = -(-data.draw(st.integers(8192, 20_000)) // world_size)
    topology = Topology(rank=rank, world_size=world_size)
    plan = Plan(length=50_000, batch_size=batch_size, topology=topology)
    start = data.draw(st.integers(0, 50_000))

    def deal(positions):
        numbers = (mix(key, positions) % np.uint64(kinds)) / kinds
        return numbers**9 if crowded else numbers  # mostly near 0

    def find(start, stop, low, high):
        positions = np.arange(start, stop)
        numbers = deal(positions)
        return int((numbers < low).sum()), positions[(numbers >= low) & (numbers < high)]

    found = [batch.tolist() for batch in plan.batches(start, deal, find)]
    assert found == batches_of(plan, start, deal)


@given(shared(), st.booleans())
def test_without_the_padding_every_position_comes_once(run, dealt):
    plans, start, deal = run
    real = []
    for plan in plans:
        at = start
        for batch in plan.batches(start, deal if dealt else None):
            padding = plan.padding(at, deal if dealt else None)
            real += batch[~padding].tolist()
            at += plan.step_size
    assert sorted(real) == list(range(start, start + plans[0].remaining(start)))
