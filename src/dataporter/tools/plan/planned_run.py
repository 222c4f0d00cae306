"""A run that is planned: its nodes, batches, cache and link; who reads what, and holds it how long.

`Plan` deals for one rank. Here whole steps are dealt to all ranks at once, by the same rule; the
last step of an epoch, which may be short, is asked of `Plan`. The steps of an epoch are evaluated
one by one, up to some millions of positions: a whole epoch, or a part that stands for it.

A node holds a block from its first read of it until no position of the stretch is left, and the
porter knows that. That is the rule of the cache: a block in use is not evicted. A porter learns
where a run stands at announcements, from the batches that were delivered. So blocks are held for
some steps more: those of an announcement, and the batches that workers make meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.arguments import check_int, check_number
from dataporter.law import Order, Plan, Topology, Uses
from dataporter.law.ranges import joined
from dataporter.shards.index import Index
from dataporter.sources.shared_epoch import steps_announced

_PREFETCH_FACTOR = 2  # of a loader, if none is given
_TOGETHER = 1 << 18  # positions that are dealt at a time
EVALUATED = 4_000_000  # positions at most, in whole steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run of `nodes` x `ranks` ranks, each with batches of `batch` samples.

    >>> PlannedRun(nodes=2, ranks=4, batch=16).step_size
    128
    """

    nodes: int = 1
    ranks: int = 1  # of a node
    batch: int  # of a rank
    workers: int = 8  # of a rank
    shuffle: bool = True
    seed: int = 0
    resume_at: float | None = None  # share of an epoch after which a run was saved
    cache_bytes: int | None = None  # of a node
    bandwidth: float = 1e9  # bytes a second that come to a node
    latency: float = 0.03  # seconds of a round trip

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks", "batch"):
            check_int(name, getattr(self, name), least=1)
        check_int("workers", self.workers, least=0)
        check_int("seed", self.seed, least=0)
        check_int("cache", self.cache_bytes, least=1, optional=True)
        check_number("bandwidth", self.bandwidth, above=0)
        check_number("latency", self.latency)
        if self.resume_at is not None:
            check_number("resume_at", self.resume_at, below=1)

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks

    @property
    def step_size(self) -> int:
        """Samples in one step of all ranks."""
        return self.world_size * self.batch

    @property
    def steps_in_flight(self) -> int:
        """Batches of a rank that are being made at a time, beside the one that it waits for."""
        return _PREFETCH_FACTOR * self.workers

    def plan(self, length: int, rank: int = 0) -> Plan:
        """Return how one rank shares an epoch of `length` positions."""
        topology = Topology(rank=rank, world_size=self.world_size)
        return Plan(length=length, batch_size=self.batch, topology=topology)


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


def uses_of(order: Order, epoch: int = 0) -> Uses:
    """Return when blocks are in use in an epoch, sorted by block.

    Stretches of one block that overlap are joined: the block stays in use.
    """
    return order.uses("", epoch).joined()


def reads_of(
    order: Order, index: Index, run: PlannedRun, start: int = 0, most: int = EVALUATED
) -> Reads:
    """Evaluate the steps from a position on."""
    uses = uses_of(order)
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


class Held(NamedTuple):
    """An amount that is in use at a time."""

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


def over_epoch(uses: Uses, amounts: NDArray[np.int64], start: int, stop: int) -> Held:
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
    return Held(float((held * lengths).sum()) / (stop - start), most)
