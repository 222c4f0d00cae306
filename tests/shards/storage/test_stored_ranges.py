"""Ranges that are asked for together: all of them are read, and few bytes in vain."""

from hypothesis import given
from hypothesis import strategies as st

from dataporter.shards.storage.storage import EXCESS, GAP, merged

lengths = st.integers(0, 2 * GAP)
ranges = st.lists(st.tuples(st.integers(0, 8 * GAP), lengths), max_size=8).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


def union(ranges):
    """The bytes of ranges, as ranges that neither touch nor overlap."""
    found = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


@given(ranges)
def test_every_byte_is_in_one_run_and_few_are_read_in_vain(ranges):
    runs, wanted = merged(ranges), union(ranges)
    assert union(runs) == runs
    for first, end in runs:
        inside = [each for each in wanted if first <= each[0] < end]
        assert (inside[0][0], inside[-1][1]) == (first, end)
        assert end - first <= (1 + EXCESS) * sum(stop - start for start, stop in inside)
        wanted = [each for each in wanted if each not in inside]
    assert wanted == []


def test_small_ranges_with_large_gaps_are_read_one_by_one():
    ranges = [(place, place + 10) for place in range(0, 10_000, 1_000)]
    assert merged(ranges) == ranges


def test_any_number_of_ranges_with_small_gaps_is_read_as_one():
    ranges = [(place, place + 970) for place in range(0, 10_000, 1_000)]
    assert merged(ranges) == [(0, 9_970)]
