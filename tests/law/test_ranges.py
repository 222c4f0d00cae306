"""Ranges delivered ahead of their turn: what is left comes once, and only that."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataporter.law.ranges import around, beyond, runs_of, size_of

positions = st.sets(st.integers(0, 60))


@given(positions)
def test_runs_cover_the_positions_and_nothing_else(chosen):
    runs = runs_of(np.array(sorted(chosen), dtype=np.int64))
    assert [p for start, stop in runs for p in range(start, stop)] == sorted(chosen)
    assert size_of(runs) == len(chosen)
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(runs))


@given(positions)
def test_around_counts_what_is_in_none_of_the_ranges(chosen):
    left = [p for p in range(80) if p not in chosen]
    runs = runs_of(np.array(sorted(chosen), dtype=np.int64))
    assert around(runs, range(len(left))).tolist() == left


@given(positions, st.integers(0, 61))
def test_beyond_drops_what_lies_before(chosen, position):
    runs = runs_of(np.array(sorted(chosen), dtype=np.int64))
    kept = [p for start, stop in beyond(runs, position) for p in range(start, stop)]
    assert kept == sorted(p for p in chosen if p >= position)
