"""The crew: the worker processes of an engine. It starts them, notices their deaths, ends them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import select
from collections.abc import Container
from multiprocessing.process import BaseProcess
from typing import Any

from dataporter.engine.arena import Slot
from dataporter.engine.connections import Connections
from dataporter.engine.interface import WorkerOptions
from dataporter.engine.sending import Bulk
from dataporter.engine.starting import signals_delayed, start_worker
from dataporter.engine.worker import IN_HAND, Duty
from dataporter.engine.worker_shutdown import (
    await_leavers,
    forget,
    has_ended,
    kill_at_exit,
    let_leave,
    limit_leavers,
    look_after_leavers,
    watch,
)
from dataporter.fetch import Fetches
from dataporter.layout import counted

_log = logging.getLogger(__name__)

_STARTING = 2**64 - 1  # in place of an issue's number, until a worker can report errors


class Crew:
    """The workers of one engine, by number. An entry is None while it has no worker.

    `wanted` is the number of workers that there should be; `start` starts those that are missing.
    Deaths wake up `poll`.
    """

    def __init__(
        self, fetch: Fetches, options: WorkerOptions, connections: Connections, poll: select.poll
    ) -> None:
        self._fetch = fetch
        self._options = options
        self._connections = connections
        self._poll = poll
        self._context: Any = options.context
        if not hasattr(options.context, "Process"):
            self._context = multiprocessing.get_context(options.context)
        # The file by which workers that are not forked share the dataset's large buffers.
        self._bulk: Bulk | None = None
        if self._context.get_start_method() != "fork":
            self._bulk = Bulk()
            connections.add_descriptor(self._bulk.descriptor)
        self._workers: list[BaseProcess | None] = [None] * options.num_workers
        self.wanted = min(2, options.num_workers) if options.adapts else options.num_workers
        self._retiring = 0  # workers that were told to end and have not yet
        self.is_late = False  # the batch that is waited for, by more than the timeout
        self._watched: dict[int, int] = {}  # by worker: the descriptor that tells of its death
        self._deaths = select.poll()
        slot = Slot(connections.arena, IN_HAND)
        self._in_hand = slot.reach(8 * options.num_workers).cast("Q")

    @property
    def size(self) -> int:
        """The number of workers."""
        return sum(process is not None for process in self._workers)

    @property
    def num_alive(self) -> int:
        """The number of workers that live, whether the deaths of others were noticed or not."""
        watched = list(self._watched.values())
        poll = select.poll()  # one of its own: another thread may be polling
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        return len(watched) - len(poll.poll(0))

    def start(self) -> None:
        """Start every worker that is missing."""
        limit_leavers(self._options.num_workers, reads=id(self._options.dataset))
        started = []
        for worker, process in enumerate(self._workers):
            if process is None and self.size - self._retiring < self.wanted:
                started.append(self._start(worker))
        if started:
            pids = ", ".join(map(str, started))
            _log.info("started %s (pid %s)", counted(len(started), "worker"), pids)

    def retire_one(self) -> None:
        """Expect one worker less: one of them has been told to end."""
        self.wanted -= 1
        self._retiring += 1

    def _start(self, worker: int) -> int | None:
        """Start one worker, and return its pid."""
        options = self._options
        duty = Duty(
            worker=worker,
            num_workers=options.num_workers,
            seed=options.seed,
            fetch=self._fetch,
            dataset=options.dataset,
            init=options.init,
        )
        self._in_hand[worker] = _STARTING
        with signals_delayed(self._context):
            wiring = self._connections.of_worker(worker)
            process = start_worker(self._context, duty, wiring, self._bulk)
            self._workers[worker] = process
            self._watched[worker] = watched = watch(process)
            for poll in (self._poll, self._deaths):
                poll.register(watched, select.POLLIN)
            kill_at_exit(process)
        return process.pid

    def dead(self) -> list[int]:
        """List workers that have ended without being told to."""
        ended = {descriptor for descriptor, _ in self._deaths.poll(0)}
        dead = []
        for worker in [w for w, watched in self._watched.items() if watched in ended]:
            process = self._workers[worker]
            if self._retiring and process is not None and _ended_well(process):
                self._retiring -= 1
                self.dismiss(worker)
            else:
                dead.append(worker)
        return dead

    def dismiss(self, worker: int) -> BaseProcess:
        """Remove a dead worker from the crew, and return its process."""
        process = self._workers[worker]
        if process is None:
            msg = f"worker {worker} was never started"
            raise RuntimeError(msg)
        watched = self._watched.pop(worker)
        for poll in (self._poll, self._deaths):
            poll.unregister(watched)
        if watched != process.sentinel:
            os.close(watched)
        self._workers[worker] = None
        if has_ended(process, 1):  # its exit status may come a moment later
            forget(process)
        else:
            let_leave(process, reads=id(self._options.dataset), at_once=True)
        return process

    def kill(self, worker: int) -> None:
        """End a worker that hangs; then it is among the dead."""
        process = self._workers[worker]
        if process is not None:
            process.kill()
            has_ended(process, 1)

    def has_begun(self, worker: int) -> bool:
        """Tell whether a worker is, or last was, able to report errors."""
        return self._in_hand[worker] != _STARTING

    def issue_of(self, worker: int) -> int:
        """Return the number of the issue that a worker has, or last had, in hand; 0 for none."""
        return self._in_hand[worker] if self.has_begun(worker) else 0

    def issues_in_hand(self, *, but_not: Container[int]) -> set[int]:
        """Collect the numbers of the issues that workers have, except some workers."""
        return {self.issue_of(worker) for worker in self._present() if worker not in but_not}

    def workers_with(self, issues: Container[int]) -> list[int]:
        """List the workers that have one of these issues in hand."""
        return [worker for worker in self._present() if self.issue_of(worker) in issues]

    def _present(self) -> list[int]:
        return [worker for worker, process in enumerate(self._workers) if process is not None]

    def why_late(self, issue: int) -> str:
        """Explain why the batch of an issue is late."""
        seconds = self._options.timeout
        # The words that torch's loader uses, for people who search for them.
        late = f"DataLoader timed out after {seconds:g} seconds (timeout={seconds:g})"
        for worker in self.workers_with({issue}):
            process = self._workers[worker]
            return (
                f"{late}: worker {worker} (pid {process and process.pid}) is still fetching the "
                "batch. Call next() on this iterator again to keep waiting, find out what the "
                "worker waits for, or use a longer timeout."
            )
        return (
            f"{late}: no worker has begun the batch yet. Call next() on this iterator again to "
            "keep waiting, or use more workers or a longer timeout."
        )

    def leave(self) -> None:
        """Let the workers go, who have been told to end."""
        for worker, watched in self._watched.items():
            process = self._workers[worker]
            if process is not None and watched != process.sentinel:
                os.close(watched)
        self._watched.clear()
        for worker, process in enumerate(self._workers):
            if process is not None:
                hangs = self.is_late and self.issue_of(worker) != 0
                let_leave(process, reads=id(self._options.dataset), at_once=hangs)
        look_after_leavers()

    def await_end(self, seconds: float, *, busy: Container[int] | None = None) -> None:
        """Wait a moment for workers that have left with nothing in hand, or none of the issues."""
        processes = []
        for worker, process in enumerate(self._workers):
            issue = self.issue_of(worker)
            if process is not None and not (issue if busy is None else issue in busy):
                processes.append(process)
        await_leavers(processes, seconds)


def _ended_well(process: BaseProcess) -> bool:
    return has_ended(process, 1) and process.exitcode == 0
