"""The run that is planned: its nodes, batches, cache and link; and the positions of each rank.

`Plan` deals for one rank. Here whole steps are dealt to all ranks at once, by the same rule; the
last step of an epoch, which may be short, is asked of `Plan`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.arguments import check_int, check_number
from dataporter.law import Order, Plan, Topology

_PREFETCH_FACTOR = 2  # of a loader, if none is given
_TOGETHER = 1 << 18  # positions that are dealt at a time


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
