"""The transport of Ray: actors on any node of a Ray cluster fetch ahead.

    tasks ──▶ errands ──▶ actors ──▶ replies in Ray's object store ──▶ board ──▶ a copy of one's own

Each part has a file of its own: `cluster` finds the cluster and notices its end, `pool` has
the actors, `actor` is what runs in them, `errands` gives them tasks and moves what the
dead ones had. Here they are put together.

A batch is copied once out of the object store: Ray's memory is read-only, shared and limited,
while a consumer may write into a batch and keep it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dataporter.engine.board import Issue
from dataporter.engine.budget import Budget, Limits
from dataporter.engine.interface import Running, WorkerOptions
from dataporter.engine.page_locks import can_pin, pinned
from dataporter.engine.ray.cluster import RayCluster
from dataporter.engine.ray.errands import Errands
from dataporter.engine.ray.pool import Pool
from dataporter.engine.recovery import Losses, Replacements
from dataporter.engine.taking import read_result
from dataporter.engine.wire import BATCH, PARTIAL, unpack_error
from dataporter.errors import WorkerError, WorkerTimeoutError
from dataporter.fetch import Failed, Fetches
from dataporter.fetch.tasks import Renew, Task

_SLICE = 1.0  # seconds between two looks at the cluster, while the consumer waits
_MOST_ACTORS = 4096  # if their number adapts; the cluster's room is the limit that matters
_MOST_AHEAD = 8192  # tasks


class Actors:
    """Actors on a Ray cluster."""

    most_workers = _MOST_ACTORS
    reads_always = True  # an actor is given the next task once its reply was read

    def __init__(self, fetch: Fetches, options: WorkerOptions, replacements: Replacements) -> None:
        self._options = options
        self._cluster = RayCluster()
        self._pool = pool = Pool(self._cluster, fetch, options)
        self.budget = Budget(
            options.prefetch_factor,
            pool.wanted,
            most_bytes=options.prefetch_bytes,
            grows=not options.has_places,
            most_ahead=_MOST_AHEAD,
        )
        self.losses = Losses(options.max_restarts)
        self._errands = Errands(
            self._cluster,
            pool,
            self.budget,
            self.losses,
            replacements,
            in_order=options.in_order,
            calls_each=options.prefetch_factor,
        )
        self.board = self._errands.board
        self._pins = options.pin_memory and can_pin()
        self._closed = self.is_late = False

    @property
    def is_open(self) -> bool:
        return not self._closed and self._cluster.is_connected

    @property
    def num_workers(self) -> int:
        return len(self._pool.ready)

    @property
    def wanted(self) -> int:
        return self._pool.wanted

    def begin_run(self, renew: Renew | None) -> None:
        self._errands.begin_run(renew)

    def start(self) -> None:
        self._pool.start()

    def adapt(self, wanted: int) -> None:
        # More are asked for only once all of them have room.
        if wanted < self._pool.wanted:
            self._pool.retire_one()
        elif not self._pool.starting:
            self._pool.wanted = wanted
            self._pool.start()

    def top_up(self, tasks: Iterator[Task], limits: Limits) -> None:
        self._errands.top_up(tasks, limits)

    def read(self) -> None:
        self._cluster.check()
        self._errands.collect(0)

    def wait(self, deadline: float | None) -> Exception | None:
        while True:
            left = _SLICE if deadline is None else min(deadline - time.monotonic(), _SLICE)
            if left <= 0:
                return self._late()
            if self._errands.collect(left):
                return None
            self._cluster.check(now=True)
            self._pool.start()
            error = self._pool.look_for_room()
            if error is not None:
                return error

    def _late(self) -> WorkerTimeoutError:
        """Explain why a batch is late; end actors that hang at a task nobody waits for."""
        self.is_late = True
        seconds = self._options.timeout
        late = (
            f"DataLoader timed out after {seconds:g} seconds (timeout={seconds:g}): no batch has "
            f"come from the Ray cluster at {self._cluster.address}, where {self.num_workers} of "
            f"{self._pool.wanted} workers have started. Call next() on this iterator again to "
            "keep waiting, or use more workers or a longer timeout."
        )
        self._errands.dismiss_hanging()
        self._pool.start()
        return WorkerTimeoutError(late)

    def packed(self, issue: Issue[Task]) -> bytes:
        _, _, _, memory = self._errands.reply_to(issue.slot)
        return bytes(memory[issue.offset : issue.offset + issue.size])

    def rebuilt(self, slot: int, outcome: int, offset: int, size: int) -> Any:
        reply = self._errands.take_reply(slot)
        if isinstance(reply, WorkerError):
            return Failed(reply)
        _, _, _, memory = reply  # which the reply was copied to
        if outcome not in (BATCH, PARTIAL):
            return Failed(unpack_error(memory[offset : offset + size].tobytes()))
        batch = read_result(memory, outcome, offset, size)
        return pinned(batch) if self._pins and type(batch) is not Failed else batch

    def abandon(self) -> None:
        self._errands.abandon()
        if self.is_late:
            self._errands.dismiss_hanging()
        if self._cluster.is_lost:
            self.close()

    def look(self) -> Running:
        return Running(max(self.board.num_ready, 0), self.num_workers)

    def close(self) -> None:
        # At once, so that others can use the cluster while the last batch is used.
        self._closed = True
        self._pool.close()

    def await_end(self) -> None:
        pass  # Ray ends them
