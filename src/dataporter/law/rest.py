"""The rest of an epoch: the positions from one on, around those that are not to come.

Those are the ones that were delivered ahead of their turn, and the spans that a user has excluded.
A plan counts around them, so ranks share what remains as they share a whole epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataporter.law.plan import Plan
from dataporter.law.ranges import Ranges, around, before, counted_to, size_of, union

Excluded: TypeAlias = tuple[tuple[int, int, int], ...]  # (epoch, start, stop) each, sorted, apart


def excluded_in(excluded: Sequence[Sequence[int]], epoch: int) -> Ranges:
    """Return the excluded spans of one epoch.

    >>> excluded_in(((0, 5, 9), (2, 0, 4), (2, 6, 8)), 2)
    ((0, 4), (6, 8))
    """
    return tuple((start, stop) for of, start, stop in excluded if of == epoch)


def with_span(excluded: Excluded, epoch: int, start: int, stop: int) -> Excluded:
    """Exclude one more span.

    >>> with_span(((0, 5, 9), (2, 0, 4)), 2, 3, 6)
    ((0, 5, 9), (2, 0, 6))
    """
    others = tuple(span for span in excluded if span[0] != epoch)
    spans = union(excluded_in(excluded, epoch), ((start, stop),))
    return tuple(sorted((*others, *((epoch, *span) for span in spans))))


def clipped(excluded: Excluded, epoch: int, length: int) -> Excluded:
    """Drop what lies past the end of an epoch: it may be shorter than when that was excluded.

    >>> clipped(((0, 5, 9), (2, 0, 4), (2, 6, 8)), 2, 7)
    ((0, 5, 9), (2, 0, 4), (2, 6, 7))
    """
    others = tuple(span for span in excluded if span[0] != epoch)
    kept = before(excluded_in(excluded, epoch), length)
    return tuple(sorted((*others, *((epoch, *span) for span in kept))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The rest of an epoch. `plan` and `start` count the positions around the `gaps`.

    >>> rest = rest_of(Plan(length=10, batch_size=3), 2, ((4, 6), (8, 9)))
    >>> [rest.around(batch).tolist() for batch in rest.plan.batches(rest.start)]
    [[2, 3, 6], [7, 9]]
    >>> rest.reached(1), rest.reached(2)
    (7, 10)
    """

    plan: Plan
    start: int
    gaps: Ranges

    @property
    def remaining(self) -> int:
        """The number of positions that are to come, each once."""
        return self.plan.remaining(self.start)

    @property
    def num_batches(self) -> int:
        """Batches that this rank still delivers."""
        return self.plan.num_batches(self.start)

    def around(self, counted: Any) -> NDArray[np.int64]:
        """Return the positions in the epoch of positions that are counted around the gaps."""
        return around(self.gaps, counted) if self.gaps else np.asarray(counted, dtype=np.int64)

    def reached(self, batches: int) -> int:
        """Return the position that all ranks have reached after so many more batches."""
        plan, start = self.plan, self.start
        counted = min(start + batches * plan.step_size, max(plan.length, start))
        return int(around(self.gaps, [counted])[0]) if self.gaps else counted


def rest_of(plan: Plan, position: int, *gaps: Ranges) -> Rest:
    """Return what remains of an epoch from a position on, around the gaps.

    What lies past the end of the epoch is no gap.
    """
    united = before(union(*gaps), plan.length)
    length = plan.length - size_of(united)
    return Rest(
        plan=replace(plan, length=length) if united else plan,
        start=counted_to(united, position),
        gaps=united,
    )
