"""The blocks that are in use at a time, on each node and over an epoch.

A node holds a block from its first read of it until no position of the stretch is left, and the
porter knows that. That is the rule of the cache: a block in use is not evicted. A porter learns
where a run stands at announcements, from the batches that were delivered. So blocks are held for
some steps more: those of an announcement, and the batches that workers make meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Uses
from dataporter.sources.planned import steps_announced
from dataporter.tools.plan.intervals import joined
from dataporter.tools.plan.planned_run import PlannedRun
from dataporter.tools.plan.reads import Reads


class Load(NamedTuple):
    """An amount that varies."""

    mean: float
    most: float


def on_nodes(reads: Reads, run: PlannedRun, amounts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum the amounts of blocks in use, by node and evaluated step; shape (nodes, steps)."""
    uses, steps = reads.uses, reads.steps
    blocks = uses.blocks[reads.stretch]
    ends = (uses.last[reads.stretch] - reads.start) // run.step_size + run.steps_in_flight
    announced = steps_announced(run.plan(reads.length))
    ends += announced - 1 - ends % announced  # the next step has an announcement
    count = int(uses.blocks.max()) + 1
    group, begin, end = joined(reads.node * count + blocks, reads.step, np.minimum(ends, steps - 1))
    weights = amounts[group % count].astype(np.float64)
    rows = group // count * (steps + 1)
    size = run.nodes * (steps + 1)
    changes = np.bincount(rows + begin, weights, size) - np.bincount(rows + end + 1, weights, size)
    return np.cumsum(changes.reshape(run.nodes, steps + 1), axis=1)[:, :-1]


def over_epoch(uses: Uses, amounts: NDArray[np.int64], start: int, stop: int) -> Load:
    """Return the amount that is in use on all nodes together, from one position to another."""
    is_here = (uses.first < stop) & (uses.last >= start)
    first, last = np.maximum(uses.first[is_here], start), np.minimum(uses.last[is_here], stop - 1)
    block, begin, end = joined(uses.blocks[is_here], first, last)
    weights = amounts[block].astype(np.float64)
    at = np.concatenate([begin, end + 1])
    by_position = np.argsort(at, kind="stable")
    changes = np.concatenate([weights, -weights])[by_position]
    held = np.cumsum(changes)
    lengths = np.diff(at[by_position], append=stop)
    # Of several changes at one position, only the last leads to an amount that is held.
    most = float(held[lengths > 0].max(initial=0.0))
    return Load(float((held * lengths).sum()) / (stop - start), most)
