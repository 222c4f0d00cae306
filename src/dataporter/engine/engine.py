"""The engine of workers: one loop that issues tasks ahead, waits, and delivers batches.

    tasks ──▶ top_up ──▶ workers ──▶ replies ──▶ board ──▶ rebuilt ──▶ batches

The loop knows no process and no cluster. A `Transport` brings tasks to its workers and their
replies to its board, replaces workers that die, and rebuilds a batch where its reply lies. The
board says who has which task, the budget how many may be ahead, `Losses` how many workers may die.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Iterator
from functools import partial
from time import monotonic_ns
from typing import Any, Protocol

from dataporter.engine.board import Board, Issue
from dataporter.engine.budget import Budget, Limits, Pace
from dataporter.engine.interface import Results, Running, WorkerOptions
from dataporter.engine.recovery import Losses
from dataporter.engine.wire import BATCH, TIMED, UNREADY
from dataporter.fetch import Fetches, Late
from dataporter.fetch.tasks import Renew, Task


class Transport(Protocol):
    """The workers of one engine, and the way to them and back."""

    board: Board[Task]
    budget: Budget
    losses: Losses
    most_workers: int  # if their number adapts
    reads_always: bool  # replies have to be read before each delivery, not only to wait for them
    is_late: bool  # the batch that is waited for, by more than the timeout

    @property
    def is_open(self) -> bool:
        """False once it is closed, or has lost its workers for good."""
        ...

    @property
    def num_workers(self) -> int:
        """The number of workers now."""
        ...

    @property
    def wanted(self) -> int:
        """The number of workers that there should be."""
        ...

    def begin_run(self, renew: Renew | None) -> None:
        """Begin the next run. If a worker dies, `renew` makes the tasks of its places anew."""
        ...

    def start(self) -> None:
        """Start the workers that are missing."""
        ...

    def adapt(self, wanted: int) -> None:
        """Change the number of workers, as far as that can be done now."""
        ...

    def top_up(self, tasks: Iterator[Task], limits: Limits) -> None:
        """Issue tasks up to the limits."""
        ...

    def read(self) -> None:
        """Note every reply that is there. Waits for none."""
        ...

    def wait(self, deadline: float | None) -> Exception | None:
        """Wait until a reply or a death was noted; return the error if there is none in time."""
        ...

    def packed(self, issue: Issue[Task]) -> bytes:
        """Return the bytes of a reply, which lie in the issue's slot."""
        ...

    def rebuilt(self, slot: int, outcome: int, offset: int, size: int) -> Any:
        """Rebuild a batch, or the error in its place. The slot is the batch's from here on."""
        ...

    def abandon(self) -> None:
        """Drop every task. After a timeout, workers that are still busy hang: end them."""
        ...

    def look(self) -> Running:
        """Count ready batches and living workers, at any moment and from any thread."""
        ...

    def close(self) -> None:
        """Let the workers go."""
        ...

    def await_end(self) -> None:
        """Wait a moment for workers that were let go."""
        ...


class Engine:
    """Runs tasks in the workers of a transport. One run at a time; workers stay for the next."""

    def __init__(self, fetch: Fetches, options: WorkerOptions, transport: Transport) -> None:
        self._fetch = fetch
        self._options = options
        self._transport = transport
        self._board = transport.board
        self._owner = os.getpid()
        self._running = self._is_late = False
        self._in_a_hurry = 0  # batches until the consumer counts as not waiting any more
        self._asked = self._there = self._num_ready = 0  # ns, ns; batches that were there
        self._lateness: list[Exception] = []  # until it is handed on
        self._is_exiting = sys.is_finalizing  # kept: at exit, modules are emptied

    @property
    def num_workers(self) -> int:
        """The number of workers now."""
        return self._transport.num_workers

    @property
    def is_ours(self) -> bool:
        """False if the engine is closed, or belongs to a process that forked this one."""
        return self._owner == os.getpid() and self._transport.is_open

    def fetches_by(self, fetch: Fetches) -> bool:
        """Tell whether the engine is ours and its workers use this very fetcher."""
        return self.is_ours and self._fetch is fetch

    @property
    def is_free(self) -> bool:
        """True if the engine can run a pass now."""
        return self.is_ours and not self._running

    def close(self) -> None:
        """Let the workers go."""
        if self.is_ours:
            self._transport.close()

    def run(
        self, tasks: Iterator[Task], *, then_close: bool, renew: Renew | None = None
    ) -> Results:
        """Start fetching; yield every task with its batch.

        If a worker dies, `renew` makes the tasks of its places anew.
        """
        self._transport.is_late = self._is_late = False
        self._transport.begin_run(renew)
        self._transport.losses.begin_run()
        results = self._deliver(tasks, then_close=then_close)
        next(results)  # prime the generator, so that dropping it runs its finally block
        self._transport.top_up(tasks, self._transport.budget.usual)
        self._transport.start()
        return self.results(results)

    def results(self, each: Iterator[Any]) -> Results:
        """Return results of this engine, which do not keep it alive by themselves."""
        return Results(each, self._is_next_there, partial(_look, weakref.ref(self)))

    def _deliver(self, tasks: Iterator[Task], *, then_close: bool) -> Iterator[Any]:
        transport = self._transport
        pace = Pace(transport.most_workers) if self._options.adapts else None
        is_timed = pace is not None or self._fetch.timing is not None
        reads_first = is_timed or transport.reads_always
        try:
            self._running = True
            yield None
            while self._board:
                issue = self._next(tasks, reads_first=reads_first)
                if issue is None:
                    # Handed on, not raised: the run goes on, and the next call waits again. And
                    # not held here: its traceback holds who asks, and would keep this alive.
                    yield self._board.oldest[1].task, Late(self._lateness.pop())
                    continue
                if pace is not None:
                    self._adapt(pace)
                transport.losses.note_delivery(issue.task)
                transport.top_up(tasks, self._limits())
                # No batch is held in a variable here: it is the consumer's alone.
                batch = [self._taken(issue)]
                if issue.outcome == UNREADY:
                    then_close = True  # the next run tries with other workers
                    raise batch.pop().error
                if then_close and not self._board:
                    self.close()  # so that workers end while the last batch is used
                yield issue.task, batch.pop()
        finally:
            if not self._is_exiting():  # at exit workers are killed, and modules are gone
                if self.is_ours:
                    transport.abandon()
                self._running = False
                if then_close:
                    self.close()
                    if self._owner == os.getpid():
                        # Else they stay zombies for as long as this process does nothing.
                        transport.await_end()

    def _next(self, tasks: Iterator[Task], *, reads_first: bool) -> Issue[Task] | None:
        """Take the next issue that may be delivered off the board, as soon as it has a reply.

        None if that takes too long; `_lateness` has the error then, and nothing has changed.
        """
        transport, board = self._transport, self._board
        if reads_first:
            self._asked = monotonic_ns()
            transport.read()
            self._num_ready = board.num_ready
        issue = board.take()
        if issue is None:
            patience = self._options.timeout
            deadline = time.monotonic() + patience if patience else None
            if not reads_first:
                transport.read()
            if board.num_ready and not board.is_next_ready():
                self._hurry(tasks)  # workers may have done all but a slow one: none would reply
            while (issue := board.take()) is None:
                error = transport.wait(deadline)
                if error is not None:
                    self._lateness.append(error)
                    self._is_late = True
                    return None
                self._hurry(tasks)
        if reads_first:
            self._there = monotonic_ns()
        if self._is_late:
            transport.is_late = self._is_late = False
        return issue

    def _hurry(self, tasks: Iterator[Task]) -> None:
        """Issue more tasks than usual, since the consumer waits."""
        waiting = self._transport.budget.waiting
        self._in_a_hurry = waiting.unfinished
        self._transport.top_up(tasks, waiting)

    def _limits(self) -> Limits:
        """Return the limits of now: higher ones for some batches after the consumer waited."""
        budget = self._transport.budget
        if not self._in_a_hurry:
            return budget.usual
        self._in_a_hurry -= 1
        return budget.waiting

    def _adapt(self, pace: Pace) -> None:
        """Let the number of workers follow the time that the consumer waits."""
        transport = self._transport
        waited = (self._there - self._asked) / 1e9
        wanted = pace.note(waited, transport.wanted)
        if wanted != transport.wanted:
            transport.adapt(wanted)
            transport.budget.note_workers(transport.wanted)

    def _taken(self, issue: Issue[Task]) -> Any:
        """Rebuild the batch of an issue, and note its times where a worker left them beside it."""
        transport, timing = self._transport, self._fetch.timing
        outcome, offset, size = issue.outcome or BATCH, issue.offset, issue.size
        if timing is None:
            return transport.rebuilt(issue.slot, outcome, offset, size)
        number = issue.task.number
        if outcome >= TIMED:
            offset, size = timing.unpack(number, transport.packed(issue))
            outcome -= TIMED
        batch = transport.rebuilt(issue.slot, outcome, offset, size)
        if timing.is_due():
            timing.note_handed(number, self._asked, self._there, self._num_ready)
        return batch

    def _is_next_there(self) -> bool:
        if not self._board or self._board.is_next_ready():
            return True
        self._transport.read()
        return self._board.is_next_ready()

    def look(self) -> Running:
        """Count the batches that are ready and the workers that live."""
        return self._transport.look() if self.is_ours else Running()


def _look(engine: weakref.ref[Engine]) -> Running:
    """Look at an engine, if it still exists."""
    there = engine()
    return Running() if there is None else there.look()
