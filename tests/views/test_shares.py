"""Shares: every prefix has each one within one of its share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataporter.views.segments import as_integers, pattern_of

turns = st.lists(st.integers(1, 60), min_size=1, max_size=12).map(tuple)


@given(turns=turns)
def test_every_prefix_has_each_one_within_one_of_its_share(turns):
    pattern, period = pattern_of(turns), sum(turns)
    taken = np.cumsum(pattern.who[:, None] == np.arange(len(turns)), axis=0)
    shares = np.arange(1, period + 1)[:, None] * np.array(turns) / period
    assert np.abs(taken - shares).max() < 1
    assert taken[-1].tolist() == list(turns)


@given(turns=turns, places=st.integers(0, 500))
def test_turns_are_counted_over_periods(turns, places):
    pattern, period = pattern_of(turns), sum(turns)
    who = [int(pattern.who[place % period]) for place in range(places)]
    assert pattern.counts(places).tolist() == [who.count(each) for each in range(len(turns))]
    before = [who[:place].count(each) for place, each in enumerate(who[:period])]
    assert before == pattern.before[: len(before)].tolist()


def test_one_large_and_many_small_ones_are_spread():
    # Sorted by (i + 1/2) / weight, the large one would have the first five places.
    assert pattern_of((10, *[1] * 10)).who.tolist().index(1) == 1


@given(turns=turns, others=st.integers(1, 5))
def test_one_without_turns_changes_nothing(turns, others):
    assert pattern_of((*turns, *[0] * others)).who.tolist() == pattern_of(turns).who.tolist()


@given(weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_integers_keep_shares_and_nobody_is_left_out(weights):
    found = as_integers(weights)
    assert min(found) >= 1
    assert sum(found) <= 1 << 16
    for weight, integer in zip(weights, found, strict=True):
        assert integer / sum(found) == pytest.approx(weight / sum(weights), abs=4e-3)


@given(turns=turns)
def test_decimals_are_kept_exactly(turns):
    scaled = [turn / 1000 for turn in turns]
    total, found = sum(turns), as_integers(scaled)
    assert [each * total for each in found] == [turn * sum(found) for turn in turns]


def test_weights_of_very_many_parts_keep_their_proportions():
    # Too many for a period of 10,000 places: each part would have one.
    assert as_integers([1.0000001, 3.0000002] * 6_000) == (1, 3) * 6_000
