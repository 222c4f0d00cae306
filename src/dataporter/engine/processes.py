"""The process engine: worker processes fetch ahead; batches come in order, or as they arrive.

    tasks ──▶ issue into a slot ──▶ workers ──▶ replies ──▶ board ──▶ take out of the slot ──▶

Each part has a file of its own: `board` knows who has which task, `budget` how many may be ahead,
`issuing` hands tasks out, `crew` has the processes and `connections` the pipes to them, `slots`
the memory, `taking` brings a batch out of its slot, `recovery` replaces workers that die. Here
they are put together.
"""

from __future__ import annotations

import os
import select
import sys
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from dataporter.engine.board import Board, Issue
from dataporter.engine.budget import Budget, Limits, Pace
from dataporter.engine.connections import Connections
from dataporter.engine.crew import Crew
from dataporter.engine.interface import Results, Running, WorkerOptions
from dataporter.engine.issuing import Issuer
from dataporter.engine.leaving import look_after_leavers
from dataporter.engine.recovery import Losses, Recovery, Replacements
from dataporter.engine.slots import Slots
from dataporter.engine.taking import Taker
from dataporter.engine.wire import UNREADY
from dataporter.errors import WorkerTimeoutError
from dataporter.fetch import Fetches, Late
from dataporter.fetch.tasks import Renew, Task
from dataporter.system.signals import EVERY_SIGNAL, delayed

_MOMENT = 0.01  # seconds that workers without work get to end, at the end of a pass
_LAST_MOMENT = 0.1  # likewise, when nothing uses the engine any more
_LONGEST_POLL = 2**31 - 1  # milliseconds


class ProcessEngine:
    """Runs tasks in worker processes. One run at a time; the workers stay for the next."""

    def __init__(
        self, fetch: Fetches, options: WorkerOptions, replacements: Replacements | None = None
    ) -> None:
        # Interrupted halfway, it would leave descriptors open.
        with delayed(EVERY_SIGNAL):
            self._fetch = fetch
            self._options = options
            self._owner = os.getpid()
            connections = Connections(options.num_workers if options.has_places else 1)
            self._connections = connections
            self._poll = select.poll()
            self._poll.register(connections.replies, select.POLLIN)
            self._crew = crew = Crew(fetch, options, connections, self._poll)
            self._budget = Budget(
                options.prefetch_factor,
                crew.wanted,
                most_bytes=options.prefetch_bytes,
                grows=not options.has_places,
            )
            slots = Slots(connections.arena, self._budget)
            self._board: Board[Task] = Board(slots.free, in_order=options.in_order)
            self._issuer = Issuer(self._board, self._budget, slots, connections)
            self._taker = Taker(fetch, options, slots)
            self._losses = Losses(options.max_restarts)
            self._recovery = Recovery(
                *(self._board, self._issuer, connections, crew, self._losses),
                Replacements() if replacements is None else replacements,
            )
            self._running = False
            self._in_a_hurry = 0  # batches until the consumer counts as not waiting any more
            self._is_exiting = sys.is_finalizing  # kept: at exit, modules are emptied
            self._close = weakref.finalize(self, _close, self._owner, crew, connections, waits=True)
            self._close.atexit = False  # at exit, workers are killed

    @property
    def num_workers(self) -> int:
        """The number of workers now."""
        return self._crew.size

    @property
    def is_ours(self) -> bool:
        """False if the engine is closed, or belongs to a process that forked this one."""
        return self._owner == os.getpid() and self._close.alive

    def fetches_by(self, fetch: Fetches) -> bool:
        """Tell whether the engine is ours and its workers use this very fetcher."""
        return self.is_ours and self._fetch is fetch

    @property
    def is_free(self) -> bool:
        """True if the engine can run a pass now."""
        return self.is_ours and not self._running

    def close(self) -> None:
        """Let the workers go."""
        with delayed(EVERY_SIGNAL):
            if self._close.detach() is not None:
                _close(self._owner, self._crew, self._connections)

    def run(
        self, tasks: Iterator[Task], *, then_close: bool, renew: Renew | None = None
    ) -> Results:
        """Start fetching; yield every task with its batch.

        If a worker dies, `renew` makes the tasks of its places anew.
        """
        self._crew.is_late = False
        self._recovery.renew = renew
        self._issuer.begin_run()
        self._losses.begin_run()
        results = self._deliver(tasks, then_close=then_close)
        next(results)  # prime the generator, so that dropping it runs its finally block
        self._issuer.top_up(tasks, self._budget.usual)
        self._crew.start()
        return Results(results, self._is_next_there, partial(_look, weakref.ref(self)))

    def _deliver(self, tasks: Iterator[Task], *, then_close: bool) -> Iterator[Any]:
        pace = Pace(self._options.num_workers) if self._options.adapts else None
        take = self._take if pace is None and self._fetch.timing is None else self._take_timed
        try:
            self._running = True
            yield None
            while self._board:
                issue = take(tasks)
                if issue is None:
                    # Handed on, not raised: the run goes on, and the next call waits again.
                    yield self._late()
                    continue
                if pace is not None:
                    self._adapt(pace.note(self._taker.waited, self._crew.wanted))
                self._losses.note_delivery(issue.task)
                self._issuer.top_up(tasks, self._limits())
                look_after_leavers()
                # No batch is held in a variable here: it is the consumer's alone.
                batch = [self._taker.take(issue)]
                if issue.outcome == UNREADY:
                    then_close = True  # the next run tries with other workers
                    raise batch.pop().error
                if then_close and not self._board:
                    self.close()  # so that workers end while the last batch is used
                yield issue.task, batch.pop()
            if then_close:
                self._crew.await_end(_MOMENT)
        finally:
            if not self._is_exiting():  # at exit workers are killed, and modules are gone
                self._abandon()
                self._running = False
                if then_close:
                    self.close()

    def _take_timed(self, tasks: Iterator[Task]) -> Issue[Task] | None:
        """Take the next issue likewise, and note the times."""
        self._issuer.read_replies()
        self._taker.note_asked(self._board.num_ready)
        issue = self._take(tasks)
        self._taker.note_there()
        return issue

    def _take(self, tasks: Iterator[Task]) -> Issue[Task] | None:
        """Take the next issue that may be delivered off the board, as soon as it has a reply.

        None if that takes longer than the timeout; then nothing has changed.
        """
        if not self._board.is_next_ready():
            self._await_reply(tasks)
        issue = self._board.take()
        if issue is not None:
            self._crew.is_late = False
        return issue

    def _await_reply(self, tasks: Iterator[Task]) -> None:
        """Wait until the next issue has a reply, at most as long as the timeout."""
        patience = self._options.timeout
        deadline = time.monotonic() + patience if patience else None
        self._issuer.read_replies()
        if self._board.num_ready and not self._board.is_next_ready():
            self._hurry(tasks)  # workers may have done all but a slow one, and would not wake this
        while not self._board.is_next_ready():
            woken_by = self._sleep(deadline)
            if not woken_by:
                return
            self._issuer.read_replies()
            if any(descriptor != self._connections.replies for descriptor, _ in woken_by):
                self._recovery.replace_dead_workers()
            self._hurry(tasks)

    def _hurry(self, tasks: Iterator[Task]) -> None:
        """Issue more tasks than usual, since the consumer waits."""
        self._in_a_hurry = self._budget.waiting.unfinished
        self._issuer.top_up(tasks, self._budget.waiting)

    def _limits(self) -> Limits:
        """Return the limits of now: higher ones for some batches after the consumer waited."""
        if not self._in_a_hurry:
            return self._budget.usual
        self._in_a_hurry -= 1
        return self._budget.waiting

    def _sleep(self, deadline: float | None) -> list[tuple[int, int]]:
        """Sleep until a reply, a death or the deadline. Returns the descriptors, if any."""
        if deadline is None:
            return self._poll.poll()
        while True:
            left = min(max(deadline - time.monotonic(), 0) * 1000, _LONGEST_POLL)
            woken_by = self._poll.poll(left)
            if woken_by or left < _LONGEST_POLL:
                return woken_by

    def _is_next_there(self) -> bool:
        if not self._board or self._board.is_next_ready():
            return True
        self._issuer.read_replies()
        return self._board.is_next_ready()

    def look(self) -> Running:
        """Return what is ready now, and how many workers live."""
        if not self.is_ours:
            return Running()
        ready = self._board.num_ready + self._connections.num_unread()
        return Running(min(ready, len(self._board)), self._crew.num_alive)

    def _adapt(self, wanted: int) -> None:
        """Change the number of workers."""
        if wanted > self._crew.wanted:
            self._crew.wanted = wanted
            self._crew.start()
        elif wanted < self._crew.wanted:
            self._crew.retire_one()
            self._connections.stop_one()
        self._budget.note_workers(wanted)

    def _late(self) -> tuple[Task, Late]:
        """Explain why a batch is late; replace workers that hang at a task nobody waits for."""
        self._crew.is_late = True
        number, issue = self._board.oldest
        late = Late(WorkerTimeoutError(self._crew.why_late(number)))
        hanging = self._crew.workers_with(self._board.abandoned)
        for worker in hanging:
            self._crew.kill(worker)
        if hanging:
            self._recovery.replace_dead_workers(killed=hanging)
        return issue.task, late

    def _abandon(self) -> None:
        """Drop the tasks that were not delivered."""
        if not self.is_ours:
            return
        self._issuer.abandon()
        if self._crew.is_late:
            # After a timeout, workers that are still busy hang. Others finish what they have.
            for worker in self._crew.workers_with(self._board.abandoned):
                self._crew.kill(worker)
                if not self._crew.dismiss(worker).is_alive():
                    self._board.release(self._crew.issue_of(worker))


def _look(engine: weakref.ref[ProcessEngine]) -> Running:
    """Look at an engine, if it still exists."""
    there = engine()
    return Running() if there is None else there.look()


def _close(owner: int, crew: Crew, connections: Connections, *, waits: bool = False) -> None:
    """Tell the workers to end. If `waits`, wait a moment, since nobody else will."""
    if os.getpid() != owner:
        return  # a forked child inherits the object, not the engine
    with delayed(EVERY_SIGNAL):
        connections.stop_all(crew.size)
        crew.leave()
        connections.close()
    if waits:
        crew.await_end(_LAST_MOMENT)
