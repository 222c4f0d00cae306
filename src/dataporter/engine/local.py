"""The engines of this process: inline, and threads.

Inline, each batch is fetched when it is asked for, by the thread that asks.

Threads fetch ahead: for datasets that release the GIL, for free-threaded Python, and where worker
processes are not wanted. All threads share the global random generators, so these cannot be seeded
for a sample; `sample_rng()` works as everywhere. The first batch of a run is fetched in the
caller's thread, to see whether the dataset draws from the global generators.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from dataporter.engine.board import Board, Issue
from dataporter.engine.budget import Budget, Limits
from dataporter.engine.engine import Engine
from dataporter.engine.interface import Results, Running, WorkerOptions
from dataporter.engine.page_locks import can_pin, pinned, pinned_empty
from dataporter.engine.recovery import Losses
from dataporter.engine.wire import BATCH
from dataporter.errors import WorkerTimeoutError
from dataporter.fetch import Failed, Fetches
from dataporter.fetch.generators import draws_refused
from dataporter.fetch.randomness import current_key, leave_for
from dataporter.fetch.tasks import Renew, Task
from dataporter.fetch.timing import PIN
from dataporter.layout import counted

_log = logging.getLogger(__name__)


def run_inline(tasks: Iterator[Task], fetch: Fetches, *, pin_memory: bool = False) -> Results:
    """Yield every task with its batch; page-locked if asked for and there is a device."""
    return Results(_fetched(tasks, fetch, pins=pin_memory and can_pin()))


def _fetched(tasks: Iterator[Task], fetch: Fetches, *, pins: bool) -> Iterator[tuple[Task, Any]]:
    # No batch is held in a variable here: it is the caller's alone.
    for task in tasks:
        yield task, attempted(fetch, task, pins=pins)


def attempted(fetch: Fetches, task: Task, *, pins: bool) -> Any:
    """Fetch the batch of a task. An error is returned, not raised."""
    timing, key = fetch.timing, current_key()
    if timing is not None:
        timing.begin()
    try:
        batch = fetch(task.payload, pinned_empty if pins else None)
        batch = pinned(batch) if pins else batch
        if timing is not None:
            if pins:
                timing.end(PIN)
            timing.note_made(task.number)
        return batch  # noqa: TRY300  an error of pinning is the caller's to raise too
    except Exception as error:  # noqa: BLE001  it is the caller's to raise
        return Failed(error)
    except BaseException:
        leave_for(key)  # the interrupt may have come while a sample was being left
        raise


def run_in_threads(
    tasks: Iterator[Task], fetch: Fetches, options: WorkerOptions, *, randomness: bool
) -> Results:
    """Yield every task with its batch; `fetch` must not seed the global generators."""
    engine = Engine(fetch, options, Threads(fetch, options))

    def each() -> Iterator[tuple[Task, Any]]:
        attempt = _watched if randomness else attempted
        for task in tasks:
            batch = [attempt(fetch, task, pins=options.pin_memory and can_pin())]
            ahead = engine.run(tasks, then_close=True)
            yield task, batch.pop()
            yield from ahead.each

    return engine.results(each())


class Threads:
    """The transport of threads in this process. The slot of a task has its future."""

    reads_always = False

    def __init__(self, fetch: Fetches, options: WorkerOptions) -> None:
        self._fetch = fetch
        self._options = options
        timing = fetch.timing
        numbered = None if timing is None else partial(timing.join, itertools.count())
        self._executor = ThreadPoolExecutor(options.num_workers, "dataporter worker", numbered)
        self._slots = itertools.count(1)
        self._futures: dict[int, Future[Any]] = {}
        self._unread: dict[int, int] = {}  # numbers of issues by slot
        self.board: Board[Task] = Board(self._futures.pop, in_order=options.in_order)
        self.most_workers = self.wanted = self.num_workers = options.num_workers
        self.budget = Budget(
            options.prefetch_factor, options.num_workers, grows=False, most_ahead=sys.maxsize
        )
        self.losses = Losses(0)  # a thread does not die
        self.is_open = True
        self.is_late = False

    def begin_run(self, renew: Renew | None) -> None:
        del renew  # for lanes of workers that die

    def start(self) -> None:
        _log.info("started %s in threads", counted(self.num_workers, "worker"))

    def adapt(self, wanted: int) -> None:
        pass  # all threads stay

    def top_up(self, tasks: Iterator[Task], limits: Limits) -> None:
        pins = self._options.pin_memory and can_pin()
        for task in itertools.islice(tasks, limits.ahead - len(self.board)):
            slot = next(self._slots)
            future = self._executor.submit(attempted, self._fetch, task, pins=pins)
            self._futures[slot] = future
            self._unread[slot] = self.board.issue(task, slot)

    def read(self) -> None:
        for slot, number in list(self._unread.items()):
            if self._futures[slot].done():
                del self._unread[slot]
                self.board.note_reply(number, BATCH, 0, 0)

    def wait(self, deadline: float | None) -> Exception | None:
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        slots = [self.board.oldest[1].slot] if self._options.in_order else self._unread
        awaited = [self._futures[slot] for slot in slots]
        if not wait(awaited, left, return_when=FIRST_COMPLETED).done:
            self.is_late = True
            return WorkerTimeoutError(_why_late(self._options))
        self.read()
        return None

    def packed(self, issue: Issue[Task]) -> bytes:
        raise NotImplementedError  # times are noted where they are kept

    def rebuilt(self, slot: int, outcome: int, offset: int, size: int) -> Any:
        del outcome, offset, size  # of batches in slots of memory
        return self._futures.pop(slot).result()

    def abandon(self) -> None:
        self.board.abandon_all()
        self._unread.clear()
        self._futures.clear()  # with the batches in them

    def look(self) -> Running:
        done = sum(future.done() for future in list(self._futures.values()))
        return Running(done, self.num_workers if self._futures else 0)

    def close(self) -> None:
        self.is_open = False
        # A lane must not be read any more when the next pass begins. A thread may hang.
        waits = self._options.has_places and not self.is_late
        self._executor.shutdown(wait=waits, cancel_futures=True)

    def await_end(self) -> None:
        pass  # idle threads end by themselves


def _why_late(options: WorkerOptions) -> str:
    return (
        f"DataLoader timed out after {options.timeout:g} seconds (timeout={options.timeout:g}): a "
        "thread is still fetching the batch. Call next() on this iterator again to keep waiting, "
        "find out what the thread waits for, or use a longer timeout."
    )


def _watched(fetch: Fetches, task: Task, *, pins: bool) -> Any:
    with draws_refused():
        return attempted(fetch, task, pins=pins)
