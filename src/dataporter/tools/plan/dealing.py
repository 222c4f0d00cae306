"""The rank that reads each position, for all ranks at a time.

`Plan` deals for one rank. Here whole steps are dealt to all of them at once, by the same rule; the
last step of an epoch, which may be short, is asked of `Plan`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order
from dataporter.tools.plan.planned_run import PlannedRun

_TOGETHER = 1 << 18  # positions that are dealt at a time


class Dealt(NamedTuple):
    """Positions in the order of steps, with the step and the rank of each; shapes (k,)."""

    steps: NDArray[np.int64]  # from where the evaluation starts
    ranks: NDArray[np.int64]
    positions: NDArray[np.int64]


def dealt(order: Order, run: PlannedRun, start: int, most: int, epoch: int = 0) -> Iterator[Dealt]:
    """Deal the steps of an epoch from `start`, about `most` positions of them."""
    size = run.step_size
    whole, rest = divmod(order.length - start, size)
    steps = min(whole, max(most // size, 1))
    together = max(_TOGETHER // size, 1)
    for first in range(0, steps, together):
        count = min(together, steps - first)
        begin = start + first * size
        positions = np.arange(begin, begin + count * size, dtype=np.int64).reshape(count, size)
        yield Dealt(
            np.repeat(np.arange(first, first + count), size),
            np.tile(np.repeat(np.arange(run.world_size), run.batch), count),
            _by_rank(order, run, positions, epoch).ravel(),
        )
    if steps == whole and rest:
        yield _last(order, run, start + whole * size, whole, epoch)


def _by_rank(
    order: Order, run: PlannedRun, positions: NDArray[np.int64], epoch: int
) -> NDArray[np.int64]:
    """Sort the positions of each step by the rank that reads them; shape (steps, step size)."""
    numbers = order.deal(epoch, positions.ravel()) if run.world_size > 1 else None
    if numbers is None:  # rank r takes every world_size-th
        strided = positions.reshape(len(positions), run.batch, run.world_size)
        return strided.transpose(0, 2, 1)
    by_number = np.argsort(numbers.reshape(positions.shape), axis=1, kind="stable")
    return np.take_along_axis(positions, by_number, axis=1)


def _last(order: Order, run: PlannedRun, start: int, step: int, epoch: int) -> Dealt:
    deal = functools.partial(order.deal, epoch)
    shares = [
        np.concatenate([np.empty(0, np.int64), *run.plan(order.length, rank).blocks(start, deal)])
        for rank in range(run.world_size)
    ]
    positions = np.concatenate(shares)
    ranks = np.repeat(np.arange(run.world_size), [len(share) for share in shares])
    return Dealt(np.full(len(positions), step), ranks, positions)
