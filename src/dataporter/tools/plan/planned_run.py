"""The run that is planned: its nodes, batches, cache and link."""

from __future__ import annotations

from dataclasses import dataclass

from dataporter.arguments import check_int, check_number
from dataporter.law import Plan, Topology

_PREFETCH_FACTOR = 2  # of a loader, if none is given


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
