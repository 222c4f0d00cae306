"""The weights of a mixture over a run, as segments, and where each position lies in its parts.

Positions are counted over all epochs of a run. A segment begins at a position and has weights from
there on. Turns are taken by a pattern (`shares`), each of `group` positions: one, or as many as a
batch has (`turns`). All of it can be evaluated anywhere: a part's draws before a segment are
counted from the patterns of those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.views.shares import Pattern, pattern_of
from dataporter.views.turns import Turns


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
