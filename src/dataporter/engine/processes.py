"""The transport of worker processes: tasks and batches travel in slots of shared memory.

    tasks ──▶ issue into a slot ──▶ workers ──▶ replies ──▶ board ──▶ rebuilt in its slot

Each part has a file of its own: `issuing` hands tasks out, `crew` has the processes and
`connections` the pipes to them, `slots` the memory, `taking` rebuilds a batch in its slot,
`recovery` replaces workers that die. Here they are put together.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Iterator

from dataporter.engine.board import Board
from dataporter.engine.budget import Budget, Limits
from dataporter.engine.connections import Connections
from dataporter.engine.crew import Crew
from dataporter.engine.interface import Running, WorkerOptions
from dataporter.engine.issuing import Issuer
from dataporter.engine.recovery import Losses, Recovery, Replacements
from dataporter.engine.slots import Slots
from dataporter.engine.taking import Taker
from dataporter.engine.worker_shutdown import has_ended, look_after_leavers
from dataporter.errors import WorkerTimeoutError
from dataporter.fetch import Fetches
from dataporter.fetch.tasks import Renew, Task
from dataporter.system.signals import EVERY_SIGNAL, delayed

_MOMENT = 0.1  # seconds that workers without work get to end, when nothing uses them any more
_LONGEST_POLL = 2**31 - 1  # milliseconds


class Processes:
    """Worker processes on this machine."""

    reads_always = False  # workers read their pipe, whether the consumer looks or not

    def __init__(self, fetch: Fetches, options: WorkerOptions, replacements: Replacements) -> None:
        # Interrupted halfway, it would leave descriptors open.
        with delayed(EVERY_SIGNAL):
            connections = Connections(options.num_workers if options.has_places else 1)
            self._connections = connections
            self._poll = select.poll()
            self._poll.register(connections.replies, select.POLLIN)
            self._crew = crew = Crew(fetch, options, connections, self._poll)
            self.most_workers = options.num_workers
            self.budget = Budget(
                options.prefetch_factor,
                crew.wanted,
                most_bytes=options.prefetch_bytes,
                grows=not options.has_places,
            )
            slots = Slots(connections.arena, self.budget)
            self.board: Board[Task] = Board(slots.free, in_order=options.in_order)
            self._issuer = Issuer(self.board, self.budget, slots, connections)
            taker = Taker(options, slots)
            # Not methods: each call would show in what a small batch costs.
            self.packed, self.rebuilt = taker.packed, taker.rebuilt
            self.losses = Losses(options.max_restarts)
            self._recovery = Recovery(
                self.board, self._issuer, connections, crew, self.losses, replacements
            )
            owner = os.getpid()
            self._close = weakref.finalize(self, _close, owner, crew, connections, waits=True)
            self._close.atexit = False  # at exit, workers are killed

    @property
    def is_open(self) -> bool:
        return self._close.alive

    @property
    def is_late(self) -> bool:
        return self._crew.is_late

    @is_late.setter
    def is_late(self, is_late: bool) -> None:
        self._crew.is_late = is_late

    @property
    def num_workers(self) -> int:
        return self._crew.size

    @property
    def wanted(self) -> int:
        return self._crew.wanted

    def begin_run(self, renew: Renew | None) -> None:
        self._recovery.renew = renew
        self._issuer.begin_run()

    def start(self) -> None:
        self._crew.start()

    def adapt(self, wanted: int) -> None:
        if wanted > self._crew.wanted:
            self._crew.wanted = wanted
            self._crew.start()
        else:
            self._crew.retire_one()
            self._connections.stop_one()

    def top_up(self, tasks: Iterator[Task], limits: Limits) -> None:
        self._issuer.top_up(tasks, limits)
        look_after_leavers()

    def read(self) -> None:
        self._issuer.read_replies()

    def wait(self, deadline: float | None) -> Exception | None:
        woken_by = self._sleep(deadline)
        if not woken_by:
            return self._late()
        self._issuer.read_replies()
        if any(descriptor != self._connections.replies for descriptor, _ in woken_by):
            self._recovery.replace_dead_workers()
        return None

    def _sleep(self, deadline: float | None) -> list[tuple[int, int]]:
        """Sleep until a reply, a death or the deadline. Returns the descriptors, if any."""
        if deadline is None:
            return self._poll.poll()
        while True:
            left = min(max(deadline - time.monotonic(), 0) * 1000, _LONGEST_POLL)
            woken_by = self._poll.poll(left)
            if woken_by or left < _LONGEST_POLL:
                return woken_by

    def _late(self) -> WorkerTimeoutError:
        """Explain why a batch is late; replace workers that hang at a task nobody waits for."""
        self.is_late = True
        number, _ = self.board.oldest
        error = WorkerTimeoutError(self._crew.why_late(number))
        hanging = self._crew.workers_with(self.board.abandoned)
        for worker in hanging:
            self._crew.kill(worker)
        if hanging:
            self._recovery.replace_dead_workers(killed=hanging)
        return error

    def abandon(self) -> None:
        self._issuer.abandon()  # what workers have that do not hang, they finish
        if self.is_late:
            for worker in self._crew.workers_with(self.board.abandoned):
                self._crew.kill(worker)
                if has_ended(self._crew.dismiss(worker)):
                    self.board.release(self._crew.issue_of(worker))

    def look(self) -> Running:
        ready = self.board.num_ready + self._connections.num_unread()
        return Running(min(ready, len(self.board)), self._crew.num_alive)

    def close(self) -> None:
        with delayed(EVERY_SIGNAL):
            if self._close.detach() is not None:
                _close(os.getpid(), self._crew, self._connections)

    def await_end(self) -> None:
        self._crew.await_end(_MOMENT, busy=self.board.abandoned)


def _close(owner: int, crew: Crew, connections: Connections, *, waits: bool = False) -> None:
    """Tell the workers to end. If `waits`, wait a moment, since nobody else will."""
    if os.getpid() != owner:
        return  # a forked child inherits the object, not the workers
    with delayed(EVERY_SIGNAL):
        connections.stop_all(crew.size)
        crew.leave()
        connections.close()
    if waits:
        crew.await_end(_MOMENT)
