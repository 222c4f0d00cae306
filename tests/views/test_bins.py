"""Best fit: whole documents in bins, each token once, and bins well filled."""

import itertools
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataporter.law.tracks import BlockAfterBlock, ShuffledBlocks, TracksOrder
from dataporter.views.bins import best_fit

document_lengths = st.lists(st.integers(0, 40), max_size=60)


def all_bins(lengths, length, cuts=()):
    bounds = np.array([0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)])
    bins = best_fit(np.array(lengths, dtype=np.int32), bounds, length)
    return bins, bins.pieces(np.arange(bins.count)).each()


@given(lengths=document_lengths, length=st.integers(1, 30), cuts=st.lists(st.integers(0, 60)))
def test_every_token_is_in_one_bin_and_no_bin_is_too_full(lengths, length, cuts):
    _, bins = all_bins(lengths, length, cuts)
    tokens = sorted(
        (document, token) for each in bins for document, a, b in each for token in range(a, b)
    )
    assert tokens == [(document, t) for document, n in enumerate(lengths) for t in range(n)]
    assert all(0 < sum(b - a for _, a, b in each) <= length for each in bins)


@given(lengths=document_lengths, length=st.integers(1, 30))
def test_only_documents_longer_than_a_bin_are_split(lengths, length):
    _, bins = all_bins(lengths, length)
    parts = [document for each in bins for document, _, _ in each]
    assert all(parts.count(number) == -(-n // length) for number, n in enumerate(lengths))


def slow_best_fit(sizes, length):
    """Count the bins of best-fit decreasing, as its definition says."""
    room = []
    for size in sorted(sizes, reverse=True):
        fitting = [number for number, free in enumerate(room) if free >= size]
        if fitting:
            room[min(fitting, key=room.__getitem__)] -= size
        else:
            room.append(length - size)
    return sorted(room)


@given(lengths=st.lists(st.integers(1, 30), max_size=60))
def test_bins_have_the_room_that_best_fit_decreasing_leaves(lengths):
    _, bins = all_bins(lengths, 30)
    room = sorted(30 - sum(b - a for _, a, b in each) for each in bins)
    assert room == slow_best_fit(lengths, 30)


@given(lengths=document_lengths, length=st.integers(1, 30), cuts=st.lists(st.integers(0, 60)))
def test_bins_are_numbered_by_their_first_documents_and_counted_by_block(lengths, length, cuts):
    bins, pieces = all_bins(lengths, length, cuts)
    firsts = [each[0][0] for each in pieces]
    assert firsts == sorted(firsts)
    bounds = np.array([0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)])
    counts = bins.per_block(bounds)
    assert counts.tolist() == [
        sum(a <= first < b for first in firsts) for a, b in itertools.pairwise(bounds)
    ]


@pytest.mark.parametrize("length", [2048, 8192])
@pytest.mark.parametrize("block", [20, 300, 5000])
def test_bins_of_lengths_as_texts_have_them_are_97_percent_full(length, block):
    rng = np.random.default_rng(block)
    lengths = rng.lognormal(6, 1.2, 20_000).astype(np.int32) + 1
    bins = best_fit(lengths, np.append(np.arange(0, 20_000, block), 20_000), length)
    assert lengths.sum() / (bins.count * length) >= 0.97


def test_the_time_of_packing_grows_with_the_documents_and_not_with_their_square():
    lengths = np.random.default_rng(0).lognormal(6, 1.2, 320_000).astype(np.int32) + 1

    def seconds(count):
        start = time.process_time()
        best_fit(lengths[:count], np.arange(0, count + 1, 1000), 2048)
        return time.process_time() - start

    seconds(10_000)  # what the first call compiles and loads
    # The least of some, beside each other: what else the machine does only adds to them.
    few, many = (min(seconds(count) for _ in range(3)) for count in (10_000, 320_000))
    assert many < 32 * 8 * few  # the square would be 32 * 32


KINDS = {
    "tracks": lambda rows, spans: TracksOrder(rows, 2, 1, leaf="corpus", spans=spans),
    "in order": lambda rows, spans: BlockAfterBlock(
        int(rows.sum()), rows=rows, leaf="corpus", spans=spans
    ),
    "shuffled": lambda rows, spans: ShuffledBlocks(
        int(rows.sum()), 3, rows=rows, leaf="corpus", spans=spans
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    epoch=st.integers(0, 3),
)
def test_an_order_of_bins_says_all_blocks_that_each_is_made_of(kind, lengths, cuts, epoch):
    lengths = np.array([*lengths, 5], np.int32)
    bounds = np.array([0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)])
    bins = best_fit(lengths, bounds, 16)
    order = KINDS[kind](bins.per_block(bounds), bins.spans(bounds))
    order = pickle.loads(pickle.dumps(order))
    uses = order.uses("corpus", epoch)
    assert np.all(np.diff(uses.first) >= 0)
    places, blocks = order.reads("corpus", epoch, np.arange(order.length))
    for position, index in enumerate(order.indices(epoch, np.arange(order.length)).tolist()):
        documents = bins.pieces(np.array([index])).numbers
        expected = set((np.searchsorted(bounds, documents, side="right") - 1).tolist())
        assert sorted(expected) == blocks[places == position].tolist()
        for block in expected:
            there = uses.blocks == block
            assert np.any((uses.first[there] <= position) & (position <= uses.last[there]))
