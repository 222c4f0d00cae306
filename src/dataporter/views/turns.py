"""Turns of several positions: a batch of one part each, from a position of a run on.

A turn has `group` positions. A batch ends with its epoch, and so does a turn: the last one of an
epoch may be short, and the part that has it is given fewer samples than for others. These are
counted by a table, so that any turn can be evaluated by itself.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dataporter.views.shares import Pattern


class Turns:
    """Turns by a pattern, from a position of a run on; `length` is that of an epoch."""

    def __init__(self, start: int, group: int, length: int, pattern: Pattern) -> None:
        self.start = start
        self._group, self._length, self._pattern = group, length, pattern
        self._first = length - start % length  # positions in the epoch in which they begin
        self._head = -(-self._first // group)  # turns in it
        self._later = -(-length // group)  # turns in each epoch after it

    def end(self, position: int) -> int:
        """Return where the turn ends that has begun before a position, counted from the start."""
        if position < self._first:
            return min(-(-position // self._group) * self._group, self._first)
        epochs, rest = divmod(position - self._first, self._length)
        whole = min(-(-rest // self._group) * self._group, self._length)
        return self._first + epochs * self._length + whole

    def places(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the part of each position, and how many samples were drawn from it before."""
        turns, within = self._turns(positions)
        parts = self._pattern.who[turns % len(self._pattern.who)]
        return parts, self._draws_before(parts, turns) + within

    def counts(self, positions: int) -> NDArray[np.int64]:
        """Count the draws of each part among the first positions; shape (parts,)."""
        (turn,), (within,) = self._turns(np.array([positions], dtype=np.int64))
        parts = np.arange(len(self._pattern.turns))
        counts = self._draws_before(parts, np.full(len(parts), turn))
        counts[self._pattern.who[turn % len(self._pattern.who)]] += within
        return counts

    def positions_of(self, part: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of draws of a part, which has turns."""
        own = np.flatnonzero(self._pattern.who == part)  # its places in a period
        parts = np.full(len(draws), part)

        def turn_of(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
            periods, nth = np.divmod(numbers, len(own))
            return periods * len(self._pattern.who) + own[nth]

        # The last of its turns that begins with this draw or before, by bisection.
        low, high = draws // self._group, draws + 1
        while np.any(high - low > 1):
            middle = (low + high) // 2
            is_before = self._draws_before(parts, turn_of(middle)) <= draws
            low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
        turns = turn_of(low)
        within = draws - self._draws_before(parts, turns)
        epochs, rest = np.divmod(turns - self._head, self._later)
        later = self._first + epochs * self._length + rest * self._group
        begins: NDArray[np.int64] = np.where(turns < self._head, turns * self._group, later)
        return begins + within

    def _turns(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the turn of each position, and the place in it."""
        epochs, rest = np.divmod(positions - self._first, self._length)
        is_first = positions < self._first
        within_epoch = np.where(is_first, positions, rest)
        turns, within = np.divmod(within_epoch, self._group)
        return turns + np.where(is_first, 0, self._head + epochs * self._later), within

    def _draws_before(
        self, parts: NDArray[np.int64], turns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Count the draws of each part before the turn that stands beside it."""
        pattern = self._pattern
        periods, rest = np.divmod(turns, len(pattern.who))
        taken = periods * pattern.turns[parts] + self._taken[rest, parts]
        return taken * self._group - self._missing(parts, turns)

    def _missing(self, parts: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the samples that short turns of each part have not had, before a turn."""
        ends = np.where(turns < self._head, 0, 1 + (turns - self._head) // self._later)
        periods, rest = np.divmod(ends, len(self._short) - 1)
        short: NDArray[np.int64] = periods * self._short[-1, parts] + self._short[rest, parts]
        is_first = (ends > 0) & (self._short[1, parts] > 0)
        first = self._head * self._group - self._first
        later = self._later * self._group - self._length
        short *= later
        short += is_first * (first - later)
        return short

    @cached_property
    def _taken(self) -> NDArray[np.int64]:
        """Turns of each part before each place of a period; shape (period + 1, parts)."""
        return _counted(self._pattern.who, len(self._pattern.turns))

    @cached_property
    def _short(self) -> NDArray[np.int64]:
        """Last turns of epochs that each part has had, after so many epochs; as `_taken`."""
        period = len(self._pattern.who)
        epochs = np.arange(period // math.gcd(period, self._later))
        lasts = (self._head - 1 + epochs * self._later) % period
        return _counted(self._pattern.who[lasts], len(self._pattern.turns))


def _counted(who: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """Count each part among the first ones, for every number of them."""
    found = np.zeros((len(who) + 1, parts), dtype=np.int64)
    np.cumsum(who[:, None] == np.arange(parts), axis=0, out=found[1:])
    return found
