"""The weights of a mixture over a run: who is next, and where each position lies in its parts.

Weights become integers that add up to a period, and a pattern says who is next at each place of a
period. The pattern is made by deadlines: the i-th turn of one with share w/M lies at a place where
it keeps the count of the turns so far within one of the share, and of those that may be next the
one whose time runs out first is taken (Tijdeman's solution of the chairman assignment problem).

A turn is of one position, or of as many as a batch has (`Turns`). Positions are counted over all
epochs of a run. A segment begins at a position and has weights from there on. All of it can be
evaluated anywhere: a part's draws before a segment are counted from the patterns of those before.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

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


@dataclass(frozen=True)
class Segment:
    """Weights from a position on; `turns` are integers, by part, and their order decides ties.

    That is by name, but in a run that older states have begun.
    """

    start: int
    turns: Mapping[str, int]
    group: int = 1

    def is_like(self, other: Segment) -> bool:
        """Return True if two segments differ at most in where they begin."""
        return dict(self.turns) == dict(other.turns) and self.group == other.group


class Segments:
    """The segments of a run. The names of all parts are in the order of their numbers.

    `length` is that of an epoch. A turn of several positions that has begun is ended before the
    next segment begins.
    """

    def __init__(self, segments: Sequence[Segment], names: Sequence[str], length: int) -> None:
        self._segments = tuple(segments)
        self._names = tuple(names)
        self._length = length

    def places(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the part of each position, and how many samples were drawn from it before."""
        if len(self._segments) == 1:
            return self._places_in(0, positions)
        number = np.searchsorted(self._starts, positions, side="right") - 1
        part, draw = np.empty_like(positions), np.empty_like(positions)
        for each in np.unique(number).tolist():
            there = number == each
            part[there], draw[there] = self._places_in(each, positions[there])
        return part, draw

    def _places_in(
        self, number: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        turns = positions - self._starts[number]
        if self._segments[number].group > 1:
            part, draw = self._turns[number].places(turns)
        else:
            pattern = self._patterns[number]
            period, place = np.divmod(turns, len(pattern.who))
            part = pattern.who[place]
            draw = pattern.before[place]
            draw += period * pattern.turns[part]
        draw += self._before[number][part]
        return part, draw

    def positions_of(self, part: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of a part's draws; where it is drawn no more, the largest int."""
        before = np.array([counts[part] for counts in self._before])
        number = np.searchsorted(before, draws, side="right") - 1
        found = np.full_like(draws, np.iinfo(np.int64).max)
        for each in np.unique(number).tolist():
            pattern = self._patterns[each]
            turns = int(pattern.turns[part])
            if not turns:
                continue
            there = number == each
            own = draws[there] - before[each]
            if self._segments[each].group > 1:
                places = self._turns[each].positions_of(part, own)
            else:
                period, nth = np.divmod(own, turns)
                places = period * len(pattern.who) + np.flatnonzero(pattern.who == part)[nth]
            found[there] = self._starts[each] + places
        return found

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the draws of each part before a position; shape (parts,)."""
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self._before[number] + self._counted(number, position - int(self._starts[number]))

    @cached_property
    def _patterns(self) -> list[Pattern]:
        return [self._pattern(each) for each in self._segments]

    def _pattern(self, segment: Segment) -> Pattern:
        """Return the pattern of a segment, in which parts have their numbers in the run.

        Among equals, the first in `segment.turns` is next: the parts of a resumed run may be
        listed in another order.
        """
        own = pattern_of(tuple(segment.turns.values()))
        numbers = np.array([self._names.index(name) for name in segment.turns])
        turns = np.zeros(len(self._names), dtype=np.int64)
        turns[numbers] = own.turns
        return Pattern(numbers[own.who], own.before, turns)

    @cached_property
    def _turns(self) -> list[Turns]:
        turns: list[Turns] = []
        start = 0
        for segment, pattern in zip(self._segments, self._patterns, strict=True):
            if turns and segment.start > start:
                start += turns[-1].end(segment.start - start)
            turns.append(Turns(start, segment.group, self._length, pattern))
        return turns

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.array([each.start for each in self._turns], dtype=np.int64)

    @cached_property
    def _before(self) -> list[NDArray[np.int64]]:
        """Draws of each part before each segment."""
        counts = [np.zeros(len(self._names), dtype=np.int64)]
        for number, length in enumerate(np.diff(self._starts).tolist()):
            counts.append(counts[-1] + self._counted(number, length))
        return counts

    def _counted(self, number: int, length: int) -> NDArray[np.int64]:
        """Count the draws of each part among the first positions of a segment."""
        if self._segments[number].group > 1:
            return self._turns[number].counts(length)
        return self._patterns[number].counts(length)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_segments", "_names", "_length")}


def continued(past: Sequence[Segment], wanted: Sequence[Segment], position: int) -> list[Segment]:
    """Return the segments of a run that has had `past` so far, and has what is wanted from now on.

    >>> old, new = Segment(0, {"a": 1}), Segment(0, {"a": 1, "b": 1})
    >>> [(each.start, each.turns) for each in continued([old], [new], 50)]
    [(0, {'a': 1}), (50, {'a': 1, 'b': 1})]
    """
    # Equal weights are taken over as they were saved, with what decides ties.
    saved = {each.start: each for each in past}
    wanted = [
        known if (known := saved.get(each.start)) and known.is_like(each) else each
        for each in wanted
    ]
    kept = [each for each in past if each.start < position]
    (now,) = [each for each in wanted if each.start <= position][-1:]
    if now.start == position or not kept or not kept[-1].is_like(now):
        kept.append(Segment(position, now.turns, now.group))
    return kept + [each for each in wanted if each.start > position]


def read_whole(segments: Sequence[Segment], name: str, samples: int) -> Fraction | None:
    """Return how many samples of a run there are until so many of a part were drawn.

    None if the part is drawn no more before that.

    >>> read_whole([Segment(0, {"a": 1}), Segment(10, {"a": 1, "b": 3})], "b", 6)
    Fraction(18, 1)
    """
    drawn = Fraction(0)
    for number, segment in enumerate(segments):
        share = Fraction(segment.turns.get(name, 0), sum(segment.turns.values()))
        end = segments[number + 1].start if number + 1 < len(segments) else None
        if share and (end is None or drawn + (end - segment.start) * share >= samples):
            return segment.start + (samples - drawn) / share
        drawn += 0 if end is None else (end - segment.start) * share
    return None
