"""`LengthBatches`: little padding, every sample once, elastic resumes."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Augmented, plain

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError, OptionTypeError, StateMismatchError
from dataporter.patched_dataloader import PatchedDataLoader
from dataporter.stateful_dataloader import StatefulDataLoader
from dataporter.testing import verify
from dataporter.views import LengthBatches

REALISTIC = np.random.default_rng(1).lognormal(5.5, 1.0, 20_000).clip(8, 4096).astype(int)
SMALL = np.random.default_rng(2).integers(1, 60, 300)

samples = st.lists(st.integers(0, 40), min_size=1, max_size=80)


def loader_of(lengths, kind=ResumableDataLoader, dataset=None, **options):
    batches = LengthBatches(lengths, max_tokens=120)
    data = range(len(lengths)) if dataset is None else dataset
    return kind(data, batch_sampler=batches, **{"seed": 3, **options})


def resumed(loader, state):
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


# Batches


@given(lengths=samples, spare=st.integers(0, 100), buckets=st.integers(1, 9) | st.none())
def test_every_sample_comes_once_and_no_batch_exceeds_the_budget(lengths, spare, buckets):
    most = max(*lengths, 1) + spare
    batches = LengthBatches(lengths, max_tokens=most, buckets=buckets)
    for _ in range(2):
        found = list(batches)
        assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
        assert all(len(b) * max(lengths[i] for i in b) <= most for b in found)
        assert len(found) == len(batches)


@given(lengths=samples, epoch=st.integers(0, 5), data=st.data())
def test_any_batch_can_be_asked_for_by_itself(lengths, epoch, data):
    order = LengthBatches(lengths, max_tokens=100).epoch_order(
        shuffle=True, seed=5, step_size=1, world_size=1
    )
    whole = order.indices(epoch, np.arange(order.length))
    some = data.draw(st.lists(st.integers(0, order.length - 1), max_size=8))
    found = order.indices(epoch, np.array(some, dtype=np.int64))
    assert [each.tolist() for each in found] == [whole[number].tolist() for number in some]


def test_a_realistic_distribution_is_padded_by_less_than_five_per_cent():
    batches = LengthBatches(REALISTIC, max_tokens=16_384)
    tokens = padded = 0
    for batch in batches:
        lengths = REALISTIC[batch]
        tokens, padded = tokens + lengths.sum(), padded + lengths.max() * len(lengths)
    assert 1 - tokens / padded < 0.05
    assert batches.padding == pytest.approx(1 - tokens / padded)
    # The budget is used: a batch is as large as it may be.
    assert tokens / len(batches) > 0.85 * 16_384


def test_batches_and_their_contents_change_from_epoch_to_epoch():
    batches = LengthBatches(SMALL, max_tokens=120)
    first, second = list(batches), list(batches)
    assert first != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    assert sorted(map(len, first)) == sorted(map(len, second))


def test_without_a_shuffle_the_shortest_come_first():
    batches = LengthBatches(SMALL, max_tokens=120, shuffle=False)
    longest = [max(SMALL[batch]) for batch in batches]
    assert longest == sorted(longest)
    assert list(batches) == list(batches)


def test_lengths_that_fill_no_batch_share_a_bucket_with_longer_ones():
    lengths = [10, 20, 40, 80]  # each would be a bucket of its own, and a batch
    assert list(LengthBatches(lengths, max_tokens=320, shuffle=False)) == [[0, 1, 2, 3]]


def test_samples_of_one_length_are_one_bucket():
    batches = LengthBatches([7] * 10, max_tokens=70, buckets=4)
    assert len(batches) == 1


def test_samples_of_a_batch_may_be_bounded():
    batches = LengthBatches([1] * 100, max_tokens=1000, max_samples=7)
    assert {len(batch) for batch in batches} <= {6, 7}


# Loaders


@pytest.mark.parametrize("kind", [ResumableDataLoader, StatefulDataLoader, PatchedDataLoader])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_deliver_the_batches(kind, num_workers):
    loader = loader_of(SMALL, kind, num_workers=num_workers)
    found = [plain(batch) for batch in loader]
    assert sorted(itertools.chain(*found)) == list(range(300))
    assert len(found) == len(loader)
    assert all(len(batch) * max(SMALL[batch]) <= 120 for batch in found)


@settings(max_examples=30)
@given(
    stops=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    ranks=st.lists(st.integers(1, 4), min_size=4, max_size=4),
)
def test_chains_of_resumes_on_other_ranks_lose_and_repeat_nothing(stops, ranks):
    found, state = [], None
    for steps, world_size in zip([*stops, None], [*ranks, 1][-len(stops) - 1 :], strict=True):
        loaders = [loader_of(SMALL, rank=rank, world_size=world_size) for rank in range(world_size)]
        for loader in loaders:
            if state is not None:
                resumed(loader, state)
        found += [plain(batch) for loader in loaders for batch in itertools.islice(loader, steps)]
        state = loaders[0].state_dict()
    assert sorted(itertools.chain(*found)) == list(range(300))


def test_every_rank_has_as_many_batches():
    loaders = [loader_of(SMALL, rank=rank, world_size=4) for rank in range(4)]
    assert len({len(loader) for loader in loaders}) == 1
    assert len({len(list(loader)) for loader in loaders}) == 1


def test_steps_that_are_not_whole_are_dropped_on_every_rank():
    loaders = [loader_of(SMALL, rank=rank, world_size=4, tail="drop") for rank in range(4)]
    whole = len(list(loader_of(SMALL, world_size=1, rank=0)))
    assert whole % 4
    batches = [[plain(batch) for batch in loader] for loader in loaders]
    assert {len(loader) for loader in loaders} == {len(each) for each in batches} == {whole // 4}
    samples = [index for each in batches for batch in each for index in batch]
    assert len(samples) == len(set(samples)) < len(SMALL)


def test_augmentation_belongs_to_the_sample_and_its_epoch():
    def make(**options):
        return loader_of(SMALL, dataset=Augmented(300), **options)

    whole = [json.dumps(plain(batch)) for batch in make()]
    loader = make(num_workers=2)
    first = [json.dumps(plain(batch)) for batch in itertools.islice(loader, 7)]
    rest = [json.dumps(plain(batch)) for batch in resumed(make(), loader.state_dict())]
    assert first + rest == whole


def test_torchs_own_loader_takes_it_too():
    batches = LengthBatches(SMALL, max_tokens=120)
    loader = torch.utils.data.DataLoader(range(300), batch_sampler=batches)
    assert sorted(int(i) for batch in loader for i in batch) == list(range(300))
    batches.set_epoch(0)
    assert next(iter(loader)).tolist() == next(iter(LengthBatches(SMALL, max_tokens=120)))


def test_other_lengths_are_another_order():
    loader = loader_of(SMALL)
    next(iter(loader))
    other = SMALL.copy()
    other[7] += 1
    with pytest.raises(StateMismatchError, match="order changed"):
        resumed(loader_of(other), loader.state_dict())


def test_a_state_counts_batches():
    loader = loader_of(SMALL)
    list(itertools.islice(loader, 5))
    state = loader.state_dict()
    assert (state["samples_processed"], state["num_samples"]) == (5, 300)
    assert state["length"] == len(loader)
    assert f"5 of {len(loader)} " in dict(loader.explain().rows())["position"]


def make_verified():
    return loader_of(SMALL)


def test_verify_says_exact():
    report = verify(make_verified, batches=12, seconds=1000, points=1, workers=[1])
    assert report.is_exact, report


# Mistakes


@pytest.mark.parametrize(
    ("lengths", "options", "error", "words"),
    [
        ([3, 900, 4], {}, OptionError, r"sample 1 has 900 tokens, more than max_tokens=120"),
        ([3, -2], {}, OptionError, r"must not be negative, found -2 at index 1"),
        ([], {}, OptionTypeError, r"non-empty list of ints"),
        ([1.5], {}, OptionTypeError, r"found float64 of shape \(1,\)"),
        ([1], {"buckets": 0}, OptionError, "buckets must be at least 1"),
        ([1], {"max_tokens": 0}, OptionError, "max_tokens must be at least 1"),
        ([1], {"shuffle": "no"}, OptionTypeError, "shuffle must be"),
    ],
)
def test_mistakes_are_named(lengths, options, error, words):
    with pytest.raises(error, match=words):
        LengthBatches(lengths, **{"max_tokens": 120, **options})


def test_a_batch_size_beside_it_is_refused():
    with pytest.raises(OptionError, match="batch_sampler decides batches and order itself"):
        loader_of(SMALL, batch_size=4)
