"""Strategies where no process group is up; with one, they are tested in tests/distributed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataporter import (
    OptionError,
    OptionTypeError,
    ResumableDistributedSampler,
    ResumableSampler,
    TopologyError,
    create_resumable_dataloader,
)
from dataporter.law import Topology
from dataporter.strategies import (
    DistributedStrategy,
    SimpleStrategy,
    UnifiedResumptionStrategy,
    resolve_strategy,
)


@given(epoch=st.integers(0, 10**6), samples=st.integers(0, 10**15), length=st.integers(1, 10**9))
def test_a_count_of_samples_past_the_end_of_an_epoch_is_a_position_in_a_later_one(
    epoch, samples, length
):
    later, position = UnifiedResumptionStrategy().locate(epoch, samples, length)
    assert 0 <= position < length
    assert later >= epoch
    assert (later - epoch) * length + position == samples


@pytest.mark.parametrize(("samples", "length"), [(-1, 10), (5, 0), (5, -3)])
def test_counts_that_cannot_be_are_refused(samples, length):
    with pytest.raises(OptionError, match=f"samples={samples}, length={length}"):
        UnifiedResumptionStrategy().locate(0, samples, length)


# Names


@pytest.mark.parametrize("name", [None, "auto", "unified"])
def test_unified_is_the_default(name):
    strategy = resolve_strategy(name)
    assert type(strategy) is UnifiedResumptionStrategy
    assert strategy.topology() == Topology(rank=0, world_size=1)


def test_simple_is_never_shared():
    strategy = resolve_strategy("simple")
    assert type(strategy) is SimpleStrategy
    assert strategy.topology() == Topology(rank=0, world_size=1)


def test_distributed_is_an_error_where_nothing_says_which_rank_this_is():
    with pytest.raises(TopologyError, match="init_process_group"):
        resolve_strategy("distributed")


@pytest.mark.parametrize("name", ["ddp", "", "Simple", 3, ["auto"], {}], ids=repr)
def test_any_other_name_is_refused(name):
    with pytest.raises(OptionError, match="'simple'"):
        resolve_strategy(name)


# Explicit ranks


@pytest.mark.parametrize("name", [None, "auto", "unified", "distributed"])
def test_explicit_values_need_no_process_group(name):
    strategy = resolve_strategy(name, rank=1, world_size=4)
    assert strategy.topology() == Topology(rank=1, world_size=4)


@pytest.mark.parametrize("values", [{"rank": 1}, {"world_size": 4}], ids=repr)
@pytest.mark.parametrize("name", [None, "distributed"])
def test_one_explicit_value_without_the_other_is_refused(name, values):
    with pytest.raises(OptionError, match="Pass both or neither"):
        resolve_strategy(name, **values)


@pytest.mark.parametrize("values", [{"rank": 0, "world_size": 1}, {"rank": 0}], ids=repr)
def test_simple_and_explicit_values_exclude_each_other(values):
    with pytest.raises(OptionError, match="never shares"):
        resolve_strategy("simple", **values)


@pytest.mark.parametrize(("rank", "world_size"), [(4, 4), (-1, 4), (0, 0)])
def test_explicit_values_that_cannot_be_are_refused(rank, world_size):
    with pytest.raises(OptionError, match=f"found rank {rank}|found {world_size}"):
        resolve_strategy("distributed", rank, world_size)


@pytest.mark.parametrize(("rank", "world_size"), [("0", 4), (0, 4.0), (True, 2)])
def test_explicit_values_that_are_no_ints_are_refused(rank, world_size):
    with pytest.raises(OptionTypeError, match="must be an int"):
        resolve_strategy(None, rank, world_size)


# Samplers


@pytest.mark.parametrize("strategy", [UnifiedResumptionStrategy(), SimpleStrategy()])
def test_alone_the_sampler_is_plain(strategy):
    sampler = strategy.create_sampler(10, shuffle=True, seed=1)
    assert type(sampler) is ResumableSampler
    assert list(sampler) == list(ResumableSampler(10, shuffle=True, seed=1))


@pytest.mark.parametrize("kind", [UnifiedResumptionStrategy, DistributedStrategy])
def test_of_several_ranks_each_has_a_share(kind):
    shares = []
    for rank in range(3):
        sampler = kind(rank, 3).create_sampler(range(10), shuffle=True, seed=1, tail="uneven")
        assert type(sampler) is ResumableDistributedSampler
        assert (sampler.rank, sampler.num_replicas) == (rank, 3)
        shares += list(sampler)
    assert sorted(shares) == list(range(10))


@pytest.mark.parametrize(("tail", "count"), [("pad", 12), ("drop", 9), ("uneven", 10)])
def test_the_tail_is_passed_on(tail, count):
    shares = [DistributedStrategy(rank, 3).create_sampler(10, tail=tail) for rank in range(3)]
    assert sum(len(list(sampler)) for sampler in shares) == count


def test_a_sampler_made_without_a_seed_takes_over_that_of_a_state():
    first, second = (UnifiedResumptionStrategy().create_sampler(50, shuffle=True) for _ in range(2))
    drawing = iter(first)
    for _ in range(20):
        next(drawing)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(drawing)


# Seeds


def test_alone_the_seed_is_drawn_from_torchs_global_generator():
    def chosen(manual_seed):
        torch.manual_seed(manual_seed)
        return UnifiedResumptionStrategy().choose_seed()

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)
    torch.manual_seed(1)
    strategy = UnifiedResumptionStrategy()
    assert strategy.choose_seed() != strategy.choose_seed()


def test_a_generator_that_is_given_is_drawn_from_instead():
    before = torch.get_rng_state()
    seeds = {
        UnifiedResumptionStrategy().choose_seed(torch.Generator().manual_seed(7)) for _ in range(3)
    }
    assert len(seeds) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_that_cannot_talk_agree_on_a_seed():
    for manual_seed in (1, 2):
        torch.manual_seed(manual_seed)
        seeds = {DistributedStrategy(rank, 4).choose_seed() for rank in range(4)}
        assert seeds == {0}


# Through the loader


def batches_of(**options):
    return [batch.tolist() for batch in create_resumable_dataloader(range(11), 2, **options)]


def test_a_loader_with_explicit_ranks_and_drop_last_makes_whole_steps():
    shares = [
        batches_of(strategy="distributed", rank=rank, world_size=2, drop_last=True)
        for rank in range(2)
    ]
    assert shares == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


def test_ranks_without_a_seed_share_one_shuffle():
    shares = [
        batches_of(strategy="distributed", rank=rank, world_size=3, shuffle=True, tail="uneven")
        for rank in range(3)
    ]
    seen = [index for batches in shares for batch in batches for index in batch]
    assert sorted(seen) == list(range(11))


@pytest.mark.parametrize("strategy", [None, "auto", "unified", "simple"])
def test_a_loader_alone_delivers_everything(strategy):
    batches = batches_of(strategy=strategy)
    assert [index for batch in batches for index in batch] == list(range(11))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"strategy": "ddp"}, OptionError),
        ({"strategy": "distributed"}, TopologyError),
        ({"strategy": "simple", "rank": 0, "world_size": 2}, OptionError),
        ({"rank": 0}, OptionError),
        ({"rank": 2, "world_size": 2}, OptionError),
    ],
)
def test_a_loader_refuses_what_its_strategy_refuses(options, error):
    with pytest.raises(error):
        create_resumable_dataloader(range(11), **options)
