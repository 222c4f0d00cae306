"""Ranges of positions, and counting around them.

What remains of an epoch is not always what follows a position. With `in_order=False` batches are
delivered as they come, and some ahead of their turn; and a user may exclude spans of positions.
Both are kept as ranges, and a run goes around them. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # (start, stop) each, sorted, apart


def runs_of(positions: NDArray[np.int64]) -> Ranges:
    """Write ascending positions as ranges.

    >>> runs_of(np.array([4, 5, 6, 9]))
    ((4, 7), (9, 10))
    """
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(positions, breaks) if len(run))


def size_of(ranges: Ranges) -> int:
    """Count the positions in ranges."""
    return sum(stop - start for start, stop in ranges)


def beyond(ranges: Ranges, position: int) -> Ranges:
    """Drop what lies before a position.

    >>> beyond(((2, 4), (6, 8), (9, 12)), 7)
    ((7, 8), (9, 12))
    """
    return tuple((max(start, position), stop) for start, stop in ranges if stop > position)


def before(ranges: Ranges, position: int) -> Ranges:
    """Drop what does not lie before a position.

    >>> before(((2, 4), (6, 8), (9, 12)), 7)
    ((2, 4), (6, 7))
    """
    return tuple((start, min(stop, position)) for start, stop in ranges if start < position)


def union(*several: Ranges) -> Ranges:
    """Put ranges together.

    >>> union(((2, 4), (9, 12)), ((0, 3), (4, 5)))
    ((0, 5), (9, 12))
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(each for ranges in several for each in ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return tuple(found)


def counted_to(ranges: Ranges, position: int) -> int:
    """Count the positions before one that are in none of the ranges.

    >>> counted_to(((2, 4), (6, 8)), 7)
    4
    """
    return position - sum(min(stop, position) - start for start, stop in ranges if start < position)


def around(ranges: Ranges, counted: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Find positions by their number among those that are in none of the ranges.

    >>> around(((2, 4), (6, 8)), [0, 1, 2, 3, 4]).tolist()
    [0, 1, 4, 5, 8]
    """
    positions = np.array(counted, dtype=np.int64)
    for start, stop in ranges:
        positions[positions >= start] += stop - start
    return positions


def outside(ranges: Ranges, start: int, stop: int) -> list[int]:
    """List the positions from `start` to `stop` that are in none of the ranges.

    >>> outside(((2, 4), (6, 8)), 1, 7)
    [1, 4, 5]
    """
    found: list[int] = []
    for first, end in ranges:
        found += range(start, min(first, stop))
        start = max(start, end)
    return [*found, *range(start, stop)]


def joined(
    group: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Join the intervals of each group; ends are inside. The answer is sorted by group and begin.

    >>> groups = np.array([7, 3, 7, 7])
    >>> joined(groups, np.array([5, 0, 0, 3]), np.array([6, 9, 3, 4]))
    (array([3, 7]), array([0, 0]), array([9, 6]))
    """
    by_begin = np.lexsort((begin, group))
    group, begin, end = group[by_begin], begin[by_begin], end[by_begin]
    span = int(end.max(initial=0)) + 2
    number = np.cumsum(np.diff(group, prepend=group[:1]) != 0)
    reached = np.maximum.accumulate(number * span + end) - number * span
    is_new = np.ones(len(group), dtype=bool)
    is_new[1:] = (group[1:] != group[:-1]) | (begin[1:] > reached[:-1] + 1)
    first = np.flatnonzero(is_new)
    last = np.append(first[1:], len(group)) - 1
    return group[first], begin[first], reached[last]
