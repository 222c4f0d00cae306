"""Intervals that overlap or touch, joined."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


def joined(group: Numbers, begin: Numbers, end: Numbers) -> tuple[Numbers, Numbers, Numbers]:
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
