import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from dataporter import OptionError, OptionTypeError
from dataporter.law import Plan, Topology

tails = st.sampled_from(["pad", "drop", "uneven"])
world_sizes = st.integers(1, 6)
batch_sizes = st.integers(1, 9)


@st.composite
def spans(draw):
    """(length, start) of what is left of an epoch."""
    length = draw(st.integers(0, 150))
    return length, draw(st.integers(0, length))


def all_ranks(length, batch_size, world_size, tail="pad"):
    return [
        Plan(
            length=length,
            batch_size=batch_size,
            topology=Topology(rank=rank, world_size=world_size),
            tail=tail,
        )
        for rank in range(world_size)
    ]


def batches_of(plan, start=0):
    return [batch.tolist() for batch in plan.batches(start)]


def positions_of(batches):
    return [position for batch in batches for position in batch]


def consumed_by(plans, start, steps=None):
    """Positions that all ranks consume in so many steps, sorted."""
    return sorted(p for plan in plans for p in positions_of(batches_of(plan, start)[:steps]))


# The laws


@given(span=spans(), batch_size=batch_sizes, world_size=world_sizes)
def test_uneven_ranks_together_take_every_position_exactly_once(span, batch_size, world_size):
    length, start = span
    plans = all_ranks(length, batch_size, world_size, "uneven")
    assert consumed_by(plans, start) == list(range(start, length))


@given(span=spans(), batch_size=batch_sizes, world_size=world_sizes)
def test_uneven_ranks_differ_by_one_sample_at_most(span, batch_size, world_size):
    length, start = span
    counts = [p.num_samples(start) for p in all_ranks(length, batch_size, world_size, "uneven")]
    assert max(counts) - min(counts) <= 1


@given(span=spans(), batch_size=batch_sizes, world_size=world_sizes)
def test_padded_ranks_make_the_same_steps_with_the_same_batch_sizes(span, batch_size, world_size):
    length, start = span
    sizes = [
        [len(batch) for batch in batches_of(plan, start)]
        for plan in all_ranks(length, batch_size, world_size)
    ]
    assert all(own == sizes[0] for own in sizes)
    assert all(size == batch_size for size in sizes[0][:-1])


@given(span=spans(), batch_size=batch_sizes, world_size=world_sizes)
def test_padding_repeats_fewer_samples_than_there_are_ranks_from_the_epochs_start(
    span, batch_size, world_size
):
    length, start = span
    taken = consumed_by(all_ranks(length, batch_size, world_size), start)
    for position in range(start, length):
        taken.remove(position)  # each comes once …
    repeats = taken  # … and what is left came again
    assert len(repeats) < world_size
    assert repeats == sorted(np.arange(len(repeats)) % max(length, 1))


@given(span=spans(), batch_size=batch_sizes, world_size=world_sizes)
def test_dropping_leaves_whole_steps_only(span, batch_size, world_size):
    length, start = span
    plans = all_ranks(length, batch_size, world_size, "drop")
    assert all(len(batch) == batch_size for plan in plans for batch in plan.batches(start))
    steps = (length - start) // (world_size * batch_size)
    end = start + steps * world_size * batch_size
    assert consumed_by(plans, start) == list(range(start, end))


@given(span=spans(), batch_size=batch_sizes, world_size=world_sizes, tail=tails, data=st.data())
def test_what_all_ranks_consumed_is_a_prefix_after_any_step(
    span, batch_size, world_size, tail, data
):
    length, start = span
    plans = all_ranks(length, batch_size, world_size, tail)
    steps = data.draw(st.integers(0, max(plan.num_batches(start) for plan in plans)))
    reached = plans[0].position_after(start, steps)
    consumed = consumed_by(plans, start, steps)
    if tail == "pad" and reached == length:
        # The repeats that fill up the last step come from the epoch's beginning.
        assert set(range(start, length)) <= set(consumed) <= set(range(length))
    else:
        assert consumed == list(range(start, reached))


@given(
    length=st.integers(0, 150),
    topologies=st.lists(st.tuples(batch_sizes, world_sizes, st.integers(0, 5)), max_size=4),
    last=st.tuples(batch_sizes, world_sizes),
)
def test_any_chain_of_topologies_covers_the_epoch_exactly_once(length, topologies, last):
    position, consumed = 0, []
    for batch_size, world_size, steps in topologies:
        plans = all_ranks(length, batch_size, world_size, "uneven")
        consumed += consumed_by(plans, position, steps)
        position = plans[0].position_after(position, steps)
    consumed += consumed_by(all_ranks(length, *last, "uneven"), position)
    assert sorted(consumed) == list(range(length))


@given(span=spans(), batch_size=batch_sizes, world_size=world_sizes, tail=tails)
def test_counts_say_what_is_yielded(span, batch_size, world_size, tail):
    length, start = span
    for plan in all_ranks(length, batch_size, world_size, tail):
        batches = batches_of(plan, start)
        assert plan.num_batches(start) == len(batches)
        assert plan.num_samples(start) == sum(map(len, batches))


@given(
    length=st.integers(0, 150),
    steps=st.integers(0, 5),
    shapes=st.sampled_from([(12, 1), (6, 2), (4, 3), (3, 4), (2, 6), (1, 12)]),
    tail=tails,
)
def test_the_same_global_batch_size_gives_the_same_global_batches(length, steps, shapes, tail):
    def global_batch(batch_size, world_size):
        plans = all_ranks(length, batch_size, world_size, tail)
        batches = [batches_of(plan, 0)[steps : steps + 1] for plan in plans]
        return {position for batch in batches for position in positions_of(batch)}

    # Where the last one is filled up, it holds a few of the epoch's first samples as well.
    extra = set(range(length)) if (steps + 1) * 12 > length and tail == "pad" else set()
    assert global_batch(12, 1) <= global_batch(*shapes) <= global_batch(12, 1) | extra


@given(length=st.integers(1, 150), batch_size=batch_sizes, world_size=world_sizes)
def test_padded_plans_equal_torchs_distributed_sampler_batch_by_batch(
    length, batch_size, world_size
):
    for plan in all_ranks(length, batch_size, world_size):
        sampler = DistributedSampler(range(length), world_size, plan.topology.rank, shuffle=False)
        assert batches_of(plan) == list(BatchSampler(sampler, batch_size, drop_last=False))


@given(length=st.integers(1, 150), batch_size=batch_sizes, world_size=world_sizes)
def test_dropping_plans_equal_torchs_distributed_sampler_batch_by_batch(
    length, batch_size, world_size
):
    for plan in all_ranks(length, batch_size, world_size, "drop"):
        sampler = DistributedSampler(
            range(length), world_size, plan.topology.rank, shuffle=False, drop_last=True
        )
        assert batches_of(plan) == list(BatchSampler(sampler, batch_size, drop_last=True))


@settings(max_examples=30)
@given(
    length=st.integers(8000, 60_000),
    start=st.integers(0, 8000),
    batch_size=st.sampled_from([1, 7, 1000, 8191, 8192, 8193, 20_000]),
    world_size=st.integers(1, 3),
    tail=tails,
)
def test_long_epochs_are_the_same_in_blocks_and_in_batches(
    length, start, batch_size, world_size, tail
):
    # A block is some 8,000 positions: here there are several, or batches longer than one.
    for plan in all_ranks(length, batch_size, world_size, tail):
        first = start + plan.topology.rank
        expected = np.arange(plan.num_samples(start)) * world_size + first
        batches = list(plan.batches(start))
        assert np.array_equal(joined(batches), expected % length)
        assert np.array_equal(joined(plan.blocks(start)), expected % length)
        assert all(len(batch) == batch_size for batch in batches[:-1])


def joined(arrays):
    return np.concatenate([np.empty(0, dtype=np.int64), *arrays])


@given(span=spans(), batch_size=batch_sizes, world_size=world_sizes, tail=tails)
def test_nothing_is_left_once_the_end_is_reached(span, batch_size, world_size, tail):
    length, _ = span
    for plan in all_ranks(length, batch_size, world_size, tail):
        assert batches_of(plan, length) == []
        assert plan.position_after(length, 3) == length


# Examples


def test_two_ranks_interleave():
    first, second = all_ranks(14, 3, 2)
    assert batches_of(first) == [[0, 2, 4], [6, 8, 10], [12]]
    assert batches_of(second) == [[1, 3, 5], [7, 9, 11], [13]]


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("pad", [[[0, 3], [6]], [[1, 4], [0]], [[2, 5], [1]]]),
        ("uneven", [[[0, 3], [6]], [[1, 4]], [[2, 5]]]),
        ("drop", [[[0, 3]], [[1, 4]], [[2, 5]]]),
    ],
)
def test_seven_samples_on_three_ranks_end_as_the_tail_says(tail, expected):
    assert [batches_of(plan) for plan in all_ranks(7, 2, 3, tail)] == expected


def test_fewer_samples_than_ranks_are_repeated_as_often_as_needed():
    assert [batches_of(plan) for plan in all_ranks(2, 1, 5)] == [[[0]], [[1]], [[0]], [[1]], [[0]]]


def test_a_resume_is_a_seek():
    plan = Plan(length=10**15, batch_size=4, topology=Topology(rank=1, world_size=2))
    assert next(plan.batches(10**15 - 100)).tolist() == [10**15 - 99 + 2 * i for i in range(4)]
    assert plan.num_batches(10**15 - 100) == 13


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (5, 2), (-1, 2), (0, 0), (0, -1), (1, 1)])
def test_ranks_and_world_sizes_that_cannot_be_are_refused(rank, world_size):
    with pytest.raises(OptionError, match=r"rank|world_size"):
        Topology(rank=rank, world_size=world_size)


@pytest.mark.parametrize(("rank", "world_size"), [(True, 2), (0, True), (0.0, 2), (0, "2")])
def test_ranks_and_world_sizes_that_are_no_ints_are_refused(rank, world_size):
    with pytest.raises(OptionTypeError, match="must be an int"):
        Topology(rank=rank, world_size=world_size)


@pytest.mark.parametrize("tail", ["wrap", "", None])
def test_an_unknown_tail_is_refused(tail):
    with pytest.raises(OptionError, match="tail must be"):
        Plan(length=10, batch_size=2, tail=tail)
