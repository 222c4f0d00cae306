"""The Ray engine: actors on any node of a Ray cluster fetch ahead.

    tasks ──▶ errands ──▶ actors ──▶ replies in Ray's object store ──▶ board ──▶ a copy of one's own

Each part has a file of its own: `cluster` finds the cluster and notices its end, `pool` has
the actors, `actor` is what runs in them, `errands` gives them tasks and moves what the
dead ones had. Board, budget and losses are those of worker processes. Here they are put together.

A batch is copied once out of the object store: Ray's memory is read-only, shared and limited,
while a consumer may write into a batch and keep it.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from dataporter.engine.board import Issue
from dataporter.engine.budget import Budget, Limits, Pace
from dataporter.engine.interface import Results, Running, WorkerOptions
from dataporter.engine.page_locks import can_pin, pinned
from dataporter.engine.ray.cluster import RayCluster
from dataporter.engine.ray.errands import Errands
from dataporter.engine.ray.pool import Pool
from dataporter.engine.recovery import Losses, Replacements
from dataporter.engine.taking import read_result
from dataporter.engine.wire import BATCH, PARTIAL, TIMED, UNREADY, unpack_error
from dataporter.errors import WorkerError, WorkerTimeoutError
from dataporter.fetch import Failed, Fetches, Late
from dataporter.fetch.tasks import Renew, Task

_SLICE = 1.0  # seconds between two looks at the cluster, while the consumer waits
_MOST_ACTORS = 4096  # if their number adapts; the cluster's room is the limit that matters
_MOST_AHEAD = 8192  # tasks


class RayEngine:
    """Runs tasks in Ray actors. One run at a time; the actors stay for the next."""

    def __init__(self, fetch: Fetches, options: WorkerOptions, replacements: Replacements) -> None:
        self._fetch = fetch
        self._options = options
        self._owner = os.getpid()
        self._cluster = RayCluster()
        self._pool = pool = Pool(self._cluster, fetch, options)
        self._budget = Budget(
            options.prefetch_factor,
            pool.wanted,
            most_bytes=options.prefetch_bytes,
            grows=not options.has_places,
            most_ahead=_MOST_AHEAD,
        )
        self._losses = Losses(options.max_restarts)
        self._errands = Errands(
            self._cluster,
            pool,
            self._budget,
            self._losses,
            replacements,
            in_order=options.in_order,
            calls_each=options.prefetch_factor,
        )
        self._board = self._errands.board
        self._pins = options.pin_memory and can_pin()
        self._running = self._closed = self._is_late = False
        self._in_a_hurry = 0  # batches until the consumer counts as not waiting any more
        self._asked = self._there = self._num_ready = 0  # ns, ns; batches that were there
        self._is_exiting = sys.is_finalizing  # kept: at exit, modules are emptied

    @property
    def num_workers(self) -> int:
        """The number of actors that have begun."""
        return len(self._pool.ready)

    @property
    def is_ours(self) -> bool:
        """False if it is closed or disconnected, or belongs to a process that forked this one."""
        return self._owner == os.getpid() and not self._closed and self._cluster.is_connected

    def fetches_by(self, fetch: Fetches) -> bool:
        """Tell whether the engine is ours and its workers use this very fetcher."""
        return self.is_ours and self._fetch is fetch

    @property
    def is_free(self) -> bool:
        """True if the engine can run a pass now."""
        return self.is_ours and not self._running

    def close(self) -> None:
        """End the actors."""
        if self.is_ours:
            self._closed = True
            self._pool.close()

    def run(
        self, tasks: Iterator[Task], *, then_close: bool, renew: Renew | None = None
    ) -> Results:
        """Start fetching; yield every task with its batch.

        If an actor dies, `renew` makes the tasks of its places anew.
        """
        self._running, self._is_late = True, False
        self._errands.begin_run(renew)
        self._losses.begin_run()
        results = self._deliver(tasks, then_close=then_close)
        next(results)  # prime the generator, so that dropping it runs its finally block
        self._pool.start()
        self._errands.top_up(tasks, self._budget.usual)
        return Results(results, self._is_next_there, partial(_look, weakref.ref(self)))

    def _deliver(self, tasks: Iterator[Task], *, then_close: bool) -> Iterator[Any]:
        pace = Pace(_MOST_ACTORS) if self._options.adapts else None
        try:
            yield None
            while self._board:
                late = self._await_next(tasks)
                if late is not None:
                    # Handed on, not raised: the run goes on, and the next call waits again.
                    yield self._board.oldest[1].task, late
                    continue
                issue = self._board.take()
                if issue is None:
                    continue
                if pace is not None:
                    self._adapt(pace)
                self._losses.note_delivery(issue.task)
                self._errands.top_up(tasks, self._limits())
                # No batch is held in a variable here: it is the consumer's alone.
                batch = [self._taken(issue)]
                if issue.outcome == UNREADY:
                    then_close = True  # the next run tries with other workers
                    raise batch.pop().error
                if then_close and not self._board:
                    self.close()  # so that others can use the cluster while the last batch is used
                yield issue.task, batch.pop()
        finally:
            if not self._is_exiting():  # at exit Ray ends the actors, and modules are gone
                self._abandon()
                self._running = False
                if then_close or self._cluster.is_lost:
                    self.close()

    def _await_next(self, tasks: Iterator[Task]) -> Late | None:
        """Wait until a batch can be delivered. Returns the reason if that takes too long."""
        self._asked = time.monotonic_ns()
        self._cluster.check()
        self._errands.collect(0)
        self._num_ready = self._board.num_ready
        patience = self._options.timeout
        deadline = time.monotonic() + patience if patience else None
        while not self._board.is_next_ready():
            left = _SLICE if deadline is None else min(deadline - time.monotonic(), _SLICE)
            if left <= 0:
                return self._late()
            if self._errands.collect(left):
                self._in_a_hurry = self._budget.waiting.unfinished
                self._errands.top_up(tasks, self._budget.waiting)
                continue
            self._cluster.check(now=True)
            self._pool.start()
            error = self._pool.look_for_room()
            if error is not None:
                return Late(error)
        self._there = time.monotonic_ns()
        self._is_late = False
        return None

    def _limits(self) -> Limits:
        """Return the limits of now: higher ones for some batches after the consumer waited."""
        if not self._in_a_hurry:
            return self._budget.usual
        self._in_a_hurry -= 1
        return self._budget.waiting

    def look(self) -> Running:
        """Count the batches that are ready and the actors, from any thread."""
        if self._closed or self._owner != os.getpid():
            return Running()
        return Running(max(self._board.num_ready, 0), self.num_workers)

    def _is_next_there(self) -> bool:
        if not self._board or self._board.is_next_ready():
            return True
        self._errands.collect(0)
        return self._board.is_next_ready()

    def _adapt(self, pace: Pace) -> None:
        """Change the number of actors. More are asked for only once all of them have room."""
        wanted = self._pool.wanted
        noted = pace.note((self._there - self._asked) / 1e9, wanted)
        if noted > wanted and not self._pool.starting:
            self._pool.wanted = noted
            self._pool.start()
        elif noted < wanted:
            self._pool.retire_one()
        self._budget.note_workers(self._pool.wanted)

    def _taken(self, issue: Issue[Task]) -> Any:
        """Rebuild a batch, in the memory that its reply was copied to."""
        reply = self._errands.reply_of(issue.slot)
        if isinstance(reply, WorkerError):
            return Failed(reply)
        outcome, offset, size, memory = reply
        timing = self._fetch.timing
        is_timed = outcome >= TIMED and timing is not None
        if timing is not None and is_timed:
            outcome -= TIMED
            offset, size = timing.unpack(
                issue.task.number, memory[offset : offset + size].tobytes()
            )
        if outcome not in (BATCH, PARTIAL):
            return Failed(unpack_error(memory[offset : offset + size].tobytes()))
        batch = read_result(memory, outcome, offset, size)
        if self._pins and type(batch) is not Failed:
            batch = pinned(batch)
        if timing is not None and is_timed:
            timing.note_handed(issue.task.number, self._asked, self._there, self._num_ready)
        return batch

    def _late(self) -> Late:
        """Explain why a batch is late; end actors that hang at a task nobody waits for."""
        self._is_late = True
        seconds = self._options.timeout
        late = (
            f"DataLoader timed out after {seconds:g} seconds (timeout={seconds:g}): no batch has "
            f"come from the Ray cluster at {self._cluster.address}, where {self.num_workers} of "
            f"{self._pool.wanted} workers have started. Call next() on this iterator again to "
            "keep waiting, or use more workers or a longer timeout."
        )
        self._errands.dismiss_hanging()
        self._pool.start()
        return Late(WorkerTimeoutError(late))

    def _abandon(self) -> None:
        """Drop the tasks that were not delivered."""
        if not self.is_ours:
            return
        self._errands.abandon()
        if self._is_late:
            self._errands.dismiss_hanging()  # after a timeout, actors that are still busy hang


def _look(engine: weakref.ref[RayEngine]) -> Running:
    """Look at an engine, if it still exists."""
    there = engine()
    return Running() if there is None else there.look()
