import functools
import math
import tracemalloc
from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shuffle_statistics import (
    beyond_chance,
    cells_score,
    counts_score,
    events_score,
    neighbour_scores,
    position_scores,
    succession_scores,
    uniform_score,
)

from dataporter import OptionError
from dataporter.law import Permutation
from dataporter.law.permutation import MAX_LENGTH, SORTED_UP_TO

AROUND_POWERS_OF_TWO = sorted({2**k + d for k in range(1, 41) for d in (-1, 0, 1)})

lengths = st.integers(1, 200) | st.integers(SORTED_UP_TO - 2, 10**4) | st.integers(1, MAX_LENGTH)
seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 10**6)


def is_bijection(indices):
    seen = np.zeros(len(indices), dtype=bool)
    seen[indices] = True  # an index past the end raises
    return bool(seen.all() and (indices >= 0).all())


# The laws


def test_every_index_comes_exactly_once_for_every_length_up_to_5000():
    for length in range(5001):
        shuffle = Permutation(length, seed=length, epoch=1)
        assert is_bijection(shuffle(np.arange(length))), length


def test_every_index_comes_exactly_once_on_every_grid_up_to_5000():
    for length in range(5001):
        shuffle = Permutation(length, seed=length, epoch=1)
        assert is_bijection(shuffle.walk(np.arange(length))), length


@pytest.mark.parametrize(
    "length", [n for n in AROUND_POWERS_OF_TWO if 5000 < n < 2**19] + [10**6 + 3]
)
def test_every_index_comes_exactly_once_beyond_that(length):
    assert is_bijection(Permutation(length, seed=3, epoch=length)(np.arange(length)))


@pytest.mark.parametrize("length", [n for n in AROUND_POWERS_OF_TWO if n >= 2**19])
def test_no_index_comes_twice_in_windows_around_powers_of_two(length):
    size = 2000
    starts = (0, length // 3, length // 2 - size, length - size)
    positions = np.concatenate([np.arange(start, start + size) for start in starts])
    indices = Permutation(length, seed=length, epoch=0)(positions)
    assert indices.min() >= 0
    assert indices.max() < length
    assert np.unique(indices).size == positions.size


@given(length=lengths, seed=seeds, epoch=epochs, data=st.data())
def test_distinct_positions_have_distinct_indices_in_range(length, seed, epoch, data):
    positions = data.draw(st.lists(st.integers(0, length - 1), min_size=1, unique=True))
    indices = Permutation(length, seed, epoch)(np.array(positions)).tolist()
    assert all(0 <= index < length for index in indices)
    assert len(set(indices)) == len(positions)


@given(length=lengths, seed=seeds, epoch=epochs, data=st.data())
def test_an_index_depends_on_its_position_only(length, seed, epoch, data):
    positions = data.draw(st.lists(st.integers(0, length - 1), min_size=1))
    together = Permutation(length, seed, epoch)(np.array(positions)).tolist()
    again = Permutation(length, seed, epoch)
    one_by_one = {p: int(again(np.array([p]))[0]) for p in data.draw(st.permutations(positions))}
    assert together == [one_by_one[p] for p in positions]


@settings(max_examples=20)
@given(length=st.sampled_from([4000, 5000, 10**12]), seed=seeds, data=st.data())
def test_long_runs_come_out_the_same_in_any_chunks(length, seed, data):
    # Longer than the chunk that is evaluated at a time, so its bounds are crossed.
    shuffle = Permutation(length, seed, epoch=2)
    positions = np.arange(20_000) % length
    cuts = sorted(data.draw(st.sets(st.integers(1, 19_999), max_size=5)))
    chunks = [shuffle(chunk) for chunk in np.split(positions, cuts)]
    assert np.array_equal(np.concatenate(chunks), shuffle(positions))


@given(length=st.integers(50, MAX_LENGTH), seed=seeds, epoch=epochs)
def test_seed_and_epoch_are_not_added_up(length, seed, epoch):
    # 50 positions that come out alike by chance: one in 50! at the most.
    positions = np.arange(50)
    one = Permutation(length, (seed + 1) % 2**64, epoch)(positions)
    other = Permutation(length, seed, epoch + 1)(positions)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("length", [5000, 10**12])
def test_positions_are_left_as_they_were(length):
    positions = np.arange(5000)
    Permutation(length, seed=0, epoch=0)(positions)
    assert np.array_equal(positions, np.arange(5000))


@pytest.mark.parametrize("length", [-1, MAX_LENGTH + 1])
def test_lengths_out_of_range_are_refused(length):
    with pytest.raises(OptionError, match=str(length)):
        Permutation(length, seed=0, epoch=0)


def test_the_longest_length_works():
    indices = Permutation(MAX_LENGTH, seed=0, epoch=0)(np.array([0, MAX_LENGTH - 1]))
    assert ((indices >= 0) & (indices < MAX_LENGTH)).all()


@pytest.mark.parametrize("length", [10**6, 10**12])
def test_memory_does_not_grow_with_the_length(length):
    tracemalloc.start()
    try:
        indices = Permutation(length, seed=0, epoch=0)(np.arange(10))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(indices) == 10
    assert peak < 64 * 1024  # bytes; the permutation itself would take 8 a sample


def test_memory_is_that_of_the_answer():
    positions = np.arange(10**12 - 10**6, 10**12)
    shuffle = Permutation(10**12, seed=0, epoch=0)
    tracemalloc.start()
    try:
        indices = shuffle(positions)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < indices.nbytes + 2**20


def test_the_order_named_shuffled_1_never_changes():
    # Saved states rely on it: if this fails, ShuffledOrder.id must get another number.
    table = Permutation(10, seed=7, epoch=3)(np.arange(10))
    assert table.tolist() == [1, 8, 6, 4, 7, 2, 0, 3, 5, 9]
    grid = Permutation(10**12, seed=7, epoch=3)(np.array([0, 1, 10**6, 10**12 - 1]))
    assert grid.tolist() == [548835447953, 203852234419, 998633119927, 504570126037]


# The quality of the shuffle, as scores of chance (see shuffle_statistics)

# Length -> how many permutations are looked at; whole ones, and windows of the longest.
LOOKED_AT = {1000: 64, 4097: 48, 65537: 12, 10**6 + 3: 3, 10**12: 12}
WHOLE = [length for length in LOOKED_AT if length < 10**12]
SMALL = [length for length in LOOKED_AT if length < 10**5]


def positions_of(length):
    return np.arange(length) if length in WHOLE else np.arange(length // 2, length // 2 + 50_000)


@functools.cache
def by_epoch(length):
    """Under one seed, one epoch after another."""
    keys = [(12, epoch) for epoch in range(LOOKED_AT[length])]
    return np.stack([Permutation(length, *key)(positions_of(length)) for key in keys])


@functools.cache
def by_seed(length):
    """In one epoch, under one seed after another."""
    keys = [(seed, 5) for seed in range(LOOKED_AT[length])]
    return np.stack([Permutation(length, *key)(positions_of(length)) for key in keys])


def telling_lags(length):
    """Distances of positions that are near each other, in sequence or on the grid."""
    columns = -(-length // (math.isqrt(length - 1) + 1))
    return [lag for lag in (1, 2, columns - 1, columns, columns + 1) if lag < 50_000]


each_length = pytest.mark.parametrize("length", LOOKED_AT)
each_small_length = pytest.mark.parametrize("length", SMALL)
by_epoch_and_by_seed = pytest.mark.parametrize("draw", [by_epoch, by_seed])


@pytest.mark.parametrize("length", [3, 4, 5])
def test_all_permutations_of_a_few_samples_are_equally_likely(length):
    keys = [(seed, epoch) for seed in range(120) for epoch in range(100)]
    found = Counter(tuple(Permutation(length, *key)(np.arange(length)).tolist()) for key in keys)
    counts = np.array([found[order] for order in permutations(range(length))])
    assert not beyond_chance({"orders": counts_score(counts, len(keys) / len(counts))})


@pytest.mark.parametrize("length", [16, 64])
def test_every_index_is_equally_likely_at_every_position(length):
    keys = [(seed, epoch) for seed in range(50) for epoch in range(100)]
    indices = np.stack([Permutation(length, *key)(np.arange(length)) for key in keys])
    assert not beyond_chance({"cells": cells_score(indices, length, bins=length)})


@by_epoch_and_by_seed
@pytest.mark.parametrize("length", WHOLE)
def test_every_stretch_of_indices_is_equally_likely_at_every_stretch_of_positions(length, draw):
    assert not beyond_chance({"cells": cells_score(draw(length), length)})


@pytest.mark.parametrize("length", [1000, 4097, 10**12])
def test_single_positions_go_anywhere_and_apart_from_each_other(length):
    positions = np.array([0, *telling_lags(length)[:4], length // 2, length - 1])
    drawn = np.stack([Permutation(length, seed, 0)(positions) for seed in range(2000)]).T
    anywhere = {p: uniform_score(drawn[p], length, bins=32) for p in range(len(positions))}
    apart = {
        (p, q): uniform_score((drawn[p] - drawn[q]) % length, length, bins=32)
        for p, q in combinations(range(len(positions)), 2)
    }
    assert not beyond_chance(anywhere)
    assert not beyond_chance(apart)


@by_epoch_and_by_seed
@each_length
def test_an_index_has_nothing_to_do_with_its_position(length, draw):
    assert not beyond_chance(position_scores(positions_of(length), draw(length), length))


@by_epoch_and_by_seed
@each_length
def test_an_index_has_nothing_to_do_with_its_neighbours(length, draw):
    assert not beyond_chance(neighbour_scores(draw(length), length, telling_lags(length)))


@by_epoch_and_by_seed
@each_length
def test_an_epoch_or_seed_has_nothing_to_do_with_the_next(length, draw):
    assert not beyond_chance(succession_scores(draw(length), length))


@each_small_length
def test_samples_stay_in_place_as_often_as_by_chance(length):
    indices = np.concatenate([by_epoch(length), by_seed(length)])
    in_place = indices == positions_of(length)
    # One fixed point a permutation, on average, whatever the length.
    assert not beyond_chance({"fixed points": events_score(in_place, expected=len(indices))})


@each_small_length
def test_neighbours_stay_neighbours_as_often_as_by_chance(length):
    indices = np.concatenate([by_epoch(length), by_seed(length)])
    neighbours = np.abs(np.diff(indices, axis=1)) == 1
    # A pair is one of neighbours in 2 (length - 1) of its length (length - 1) values.
    expected = len(indices) * (length - 1) * 2 / length
    assert not beyond_chance({"neighbours": events_score(neighbours, expected)})


@by_epoch_and_by_seed
@each_small_length
def test_any_two_epochs_or_seeds_agree_as_often_as_by_chance(length, draw):
    pairs = list(combinations(draw(length), 2))
    agreeing = np.stack([one == other for one, other in pairs])
    assert not beyond_chance({"agreeing": events_score(agreeing, expected=len(pairs))})


@pytest.mark.parametrize("length", [10**6 + 3, 10**12])
def test_windows_spread_evenly_over_all_indices(length):
    shuffle = Permutation(length, seed=1, epoch=1)
    windows = [np.arange(20_000) + start for start in (0, length // 7, length - 20_000)]
    scores = {window[0]: uniform_score(shuffle(window), length) for window in windows}
    assert not beyond_chance(scores)


# What these scores are worth: orders that are known to be bad do not pass

BAD_LENGTH = 65537


def bad_orders(order):
    return np.stack([order(np.arange(BAD_LENGTH), epoch) for epoch in range(8)])


def shuffled_fairly(positions, epoch):
    return np.random.default_rng(epoch).permutation(positions)


def in_sequence(positions, epoch):
    return positions


def multiplied(positions, epoch):
    return (positions * 40503 + 977 * epoch) % BAD_LENGTH


def from_a_buffer_of_1000(positions, epoch):
    return np.argsort(positions + np.random.default_rng(epoch).uniform(0, 1000, BAD_LENGTH))


def shuffled_once(positions, epoch):
    return np.random.default_rng(0).permutation(positions)


def by_four_rounds(positions, epoch):
    shuffle = Permutation(BAD_LENGTH, 12, epoch)
    object.__setattr__(shuffle, "_round_keys", shuffle._round_keys[:4])
    return shuffle(positions)


@pytest.mark.parametrize("order", [in_sequence, from_a_buffer_of_1000])
def test_the_position_scores_reject_what_stays_near_its_place(order):
    scores = position_scores(np.arange(BAD_LENGTH), bad_orders(order), BAD_LENGTH)
    assert min(scores.values()) > 100


@pytest.mark.parametrize("order", [in_sequence, multiplied, by_four_rounds])
def test_the_neighbour_scores_reject_what_moves_neighbours_together(order):
    scores = neighbour_scores(bad_orders(order), BAD_LENGTH, telling_lags(BAD_LENGTH))
    assert max(scores.values()) > 20


@pytest.mark.parametrize("order", [in_sequence, multiplied, shuffled_once])
def test_the_succession_scores_reject_epochs_that_are_alike(order):
    assert min(succession_scores(bad_orders(order), BAD_LENGTH).values()) > 100


@pytest.mark.parametrize("order", [in_sequence, multiplied, from_a_buffer_of_1000])
def test_the_cells_reject_what_is_too_uneven_or_too_even(order):
    assert abs(cells_score(bad_orders(order), BAD_LENGTH)) > 20


def test_all_scores_pass_a_fair_shuffle():
    indices = bad_orders(shuffled_fairly)
    assert not beyond_chance(position_scores(np.arange(BAD_LENGTH), indices, BAD_LENGTH))
    assert not beyond_chance(neighbour_scores(indices, BAD_LENGTH, telling_lags(BAD_LENGTH)))
    assert not beyond_chance(succession_scores(indices, BAD_LENGTH))
    assert not beyond_chance({"cells": cells_score(indices, BAD_LENGTH)})
