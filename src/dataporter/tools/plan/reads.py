"""The reads of a run of steps: which node reads which block, and since when.

The steps of an epoch are evaluated one by one, up to some millions of positions. That is a whole
epoch, or a part that stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order, Uses
from dataporter.shards.index import Index
from dataporter.tools.plan.dealing import Dealt, dealt
from dataporter.tools.plan.intervals import joined
from dataporter.tools.plan.planned_run import PlannedRun

EVALUATED = 4_000_000  # positions at most, in whole steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reads:
    """The reads from position `start` on, in as many steps as were evaluated.

    A node begins a stretch of a block when it reads the block for the first time there; `node`,
    `stretch` and `step` have an item for each beginning.
    """

    start: int
    length: int  # of the epoch
    steps: int  # that were evaluated
    is_whole: bool  # these are all steps to the end of the epoch
    uses: Uses  # sorted by block, then by position
    node: NDArray[np.int64]
    stretch: NDArray[np.int64]  # a number in `uses`
    step: NDArray[np.int64]  # the first one that reads it
    mates: float  # other samples of the same block in a sample's step; the mean
    first_step: FirstStep

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the different pairs of a node and a block that it reads; shapes (pairs,)."""
        count = int(self.uses.blocks.max()) + 1
        keys = np.unique(self.node * count + self.uses.blocks[self.stretch])
        return keys // count, keys % count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstStep:
    """The different blocks that each rank reads for its first batch; shapes (pairs,)."""

    rank: NDArray[np.int64]
    block: NDArray[np.int64]


def uses_of(order: Order, index: Index, epoch: int = 0) -> Uses:
    """Return when blocks are in use in an epoch, sorted by block: always, if it is not known.

    Stretches of one block that overlap are joined: the block stays in use.
    """
    uses = order.uses(epoch)
    if uses is None:  # any position may read any block
        filled = np.flatnonzero(index.rows)
        return Uses(filled, np.zeros_like(filled), np.full_like(filled, order.length - 1))
    return Uses(*joined(*uses))


def reads_of(
    order: Order, index: Index, run: PlannedRun, start: int = 0, most: int = EVALUATED
) -> Reads:
    """Evaluate the steps from a position on."""
    uses = uses_of(order, index)
    stretches = _Stretches(uses, len(index.rows))
    keys, begun = np.empty(0, np.int64), np.empty(0, np.int64)
    steps = last = mates = samples = 0
    first_step: FirstStep | None = None
    for part in dealt(order, run, start, most):
        blocks = np.searchsorted(index.ends, order.indices(0, part.positions), side="right")
        if first_step is None:
            first_step = _first_step(part, blocks, len(index.rows))
        stretch = stretches.of(blocks, part.positions)
        # The first of equal keys is the earliest, also among those of earlier parts.
        found = part.ranks // run.ranks * len(uses.blocks) + stretch
        new, places = np.unique(found, return_index=True)
        keys, places = _merged(keys, begun, new, part.steps[places])
        begun = places
        together = np.unique(part.steps * len(index.rows) + blocks, return_counts=True)[1]
        mates += int((together * (together - 1)).sum())
        samples += len(blocks)
        steps, last = int(part.steps[-1]) + 1, start + (int(part.steps[-1]) + 1) * run.step_size
    if first_step is None:
        msg = f"no position follows {start} of {order.length}."
        raise ValueError(msg)
    return Reads(
        start=start,
        length=order.length,
        steps=steps,
        is_whole=last >= order.length,
        uses=uses,
        node=keys // len(uses.blocks),
        stretch=keys % len(uses.blocks),
        step=begun,
        mates=mates / samples,
        first_step=first_step,
    )


class _Stretches:
    """Finds the stretch of a block that a position lies in."""

    def __init__(self, uses: Uses, blocks: int) -> None:
        self._uses = uses
        self._first = np.searchsorted(uses.blocks, np.arange(blocks))
        self._is_single = np.bincount(uses.blocks, minlength=blocks) == 1
        self._length = int(uses.last.max()) + 1
        self._keys = uses.blocks * self._length + uses.first

    def of(self, blocks: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        stretch = self._first[blocks]
        several = np.flatnonzero(~self._is_single[blocks])
        keys = blocks[several] * self._length + positions[several]
        stretch[several] = np.searchsorted(self._keys, keys, side="right") - 1
        return stretch


def _merged(
    keys: NDArray[np.int64],
    values: NDArray[np.int64],
    new: NDArray[np.int64],
    new_values: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Add the keys that are new, with their values."""
    merged, first = np.unique(np.concatenate([keys, new]), return_index=True)
    return merged, np.concatenate([values, new_values])[first]


def _first_step(part: Dealt, blocks: NDArray[np.int64], count: int) -> FirstStep:
    is_first = part.steps == part.steps[0]
    keys = np.unique(part.ranks[is_first] * count + blocks[is_first])
    return FirstStep(rank=keys // count, block=keys % count)
