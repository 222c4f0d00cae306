"""Shares: who is next among several, so that each has its share of every prefix.

Weights become integers that add up to a period, and a pattern says who is next at each place of a
period. The pattern is made by deadlines: the i-th turn of one with share w/M lies at a place where
it keeps the count of the turns so far within one of the share, and of those that may be next the
one whose time runs out first is taken (Tijdeman's solution of the chairman assignment problem).
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LONGEST = 1 << 16  # places of a period at most
_ROUNDED = 10_000  # places of a period if weights are not that simple


def as_integers(weights: Sequence[float]) -> tuple[int, ...]:
    """Return integers in proportion to weights that are above zero.

    Numbers of a few digits are kept exactly, others to about 1 in 10,000.

    >>> as_integers([0.7, 0.3]), as_integers([1, 1, 2])
    ((7, 3), (1, 1, 2))
    """
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(each.denominator for each in exact))
    whole = [int(each * scale) for each in exact]
    divisor = math.gcd(*whole)
    if sum(whole) // divisor <= _LONGEST:
        return tuple(each // divisor for each in whole)
    places = max(_ROUNDED, 4 * len(weights))
    total = sum(exact)
    # By largest remainders, and at least one place each.
    rounded = [max(1, math.floor(each / total * places)) for each in exact]
    remainders = [float(each / total * places) - part for each, part in zip(exact, rounded)]  # noqa: B905  equal lengths
    for number in sorted(range(len(weights)), key=lambda number: -remainders[number]):
        if sum(rounded) >= places:
            break
        rounded[number] += 1
    divisor = math.gcd(*rounded)
    return tuple(each // divisor for each in rounded)


class Pattern(NamedTuple):
    """The one that is next at each place of a period, and how often it has been before."""

    who: NDArray[np.int64]  # shape (period,)
    before: NDArray[np.int64]  # turns of the same one at earlier places; shape (period,)
    turns: NDArray[np.int64]  # of each in a period

    def counts(self, places: int) -> NDArray[np.int64]:
        """Count the turns of each among the first places, over periods."""
        periods, rest = divmod(places, len(self.who))
        return periods * self.turns + np.bincount(self.who[:rest], minlength=len(self.turns))


@functools.lru_cache(maxsize=64)
def pattern_of(turns: tuple[int, ...]) -> Pattern:
    """Make the pattern of those who have so many turns in a period; some may have none.

    >>> pattern_of((2, 1, 1)).who.tolist()
    [0, 1, 2, 0]
    """
    period = sum(turns)
    slack = max(2 * sum(turn > 0 for turn in turns) - 2, 1)
    # Turn i may come at the first place j, from 1, with w*j/M - i >= 1/slack, and has to come at
    # the last one with w*(j - 1)/M - i <= 1 - 1/slack. All in integers.
    waiting = [
        (_first(turn, period, slack, 0), number) for number, turn in enumerate(turns) if turn
    ]
    heapq.heapify(waiting)
    ready: list[tuple[Fraction, int]] = []
    done = [0] * len(turns)
    who = np.empty(period, np.int64)
    before = np.empty(period, np.int64)
    for place in range(period):
        while waiting and waiting[0][0] <= place + 1:
            _, number = heapq.heappop(waiting)
            deadline = Fraction((done[number] + 1) * slack - 1, turns[number])
            heapq.heappush(ready, (deadline, number))
        _, number = heapq.heappop(ready)
        who[place], before[place] = number, done[number]
        done[number] += 1
        if done[number] < turns[number]:
            first = _first(turns[number], period, slack, done[number])
            heapq.heappush(waiting, (first, number))
    return Pattern(who, before, np.array(turns, dtype=np.int64))


def _first(turns: int, period: int, slack: int, number: int) -> int:
    """Return the first place, from 1, at which turn `number` may come."""
    return -(-period * (number * slack + 1) // (turns * slack))
