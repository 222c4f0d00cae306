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

from dataporter.engine.interface import Results, Running, WorkerOptions
from dataporter.engine.page_locks import can_pin, pinned, pinned_empty
from dataporter.errors import SharedGeneratorError, WorkerTimeoutError
from dataporter.fetch import Failed, Fetches, Late
from dataporter.fetch.generators import capture
from dataporter.fetch.randomness import current_key, leave_for
from dataporter.fetch.tasks import Task
from dataporter.fetch.timing import PIN
from dataporter.law.explanation import counted

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
    ahead: dict[Future[Any], Task] = {}  # in the order of the tasks

    def is_there() -> bool:
        return not ahead or any(future.done() for future in _awaited(ahead, options))

    def look() -> Running:
        done = sum(future.done() for future in list(ahead))
        return Running(done, options.num_workers if ahead else 0)

    each = _delivered(tasks, fetch, options, ahead, randomness=randomness)
    return Results(each, is_there, look)


def _awaited(ahead: dict[Future[Any], Task], options: WorkerOptions) -> list[Future[Any]]:
    """List the futures of which one is delivered next."""
    return [next(iter(ahead))] if options.in_order else list(ahead)


def _delivered(
    tasks: Iterator[Task],
    fetch: Fetches,
    options: WorkerOptions,
    ahead: dict[Future[Any], Task],
    *,
    randomness: bool,
) -> Iterator[tuple[Task, Any]]:
    pins, timing = options.pin_memory and can_pin(), fetch.timing
    numbered = None if timing is None else partial(timing.join, itertools.count())
    executor = ThreadPoolExecutor(options.num_workers, "dataporter worker", numbered)
    _log.info("started %s in threads", counted(options.num_workers, "worker"))

    def top_up() -> None:
        while len(ahead) < options.num_workers * options.prefetch_factor:
            task = next(tasks, None)
            if task is None:
                return
            ahead[executor.submit(attempted, fetch, task, pins=pins)] = task

    waits = options.has_places  # a lane must not be read any more when the next pass begins
    try:
        for task in tasks:
            attempt = _watched if randomness else attempted
            batch = attempt(fetch, task, pins=pins)
            top_up()
            yield task, batch
            break
        while ahead:
            awaited, patience = _awaited(ahead, options), options.timeout or None
            is_noted = timing is not None and timing.is_due()
            if is_noted:
                asked, ready = time.monotonic_ns(), sum(future.done() for future in ahead)
            done = wait(awaited, patience, return_when=FIRST_COMPLETED).done
            if not done:
                waits = False  # for a thread that may hang
                # Handed on, not raised: the run goes on, and the next call waits again.
                yield next(iter(ahead.values())), Late(WorkerTimeoutError(_why_late(options)))
                continue
            waits = options.has_places
            future = next(future for future in ahead if future in done)
            task = ahead.pop(future)
            if timing is not None and is_noted:
                there = time.monotonic_ns()
                timing.note_handed(task.number, asked, there, ready)
            top_up()
            yield task, future.result()
    finally:
        if not sys.is_finalizing():  # by then threads have ended and modules are gone
            executor.shutdown(wait=waits, cancel_futures=True)
            ahead.clear()  # with the batches in it


def _why_late(options: WorkerOptions) -> str:
    return (
        f"DataLoader timed out after {options.timeout:g} seconds (timeout={options.timeout:g}): a "
        "thread is still fetching the batch. Call next() on this iterator again to keep waiting, "
        "find out what the thread waits for, or use a longer timeout."
    )


def _watched(fetch: Fetches, task: Task, *, pins: bool) -> Any:
    before = capture()
    batch = attempted(fetch, task, pins=pins)
    if before.still_holds():
        return batch
    before.restore()
    msg = (
        "the dataset draws from the global random generators, which all threads share. Samples "
        "would depend on which thread runs when. Draw from dataporter.sample_rng() instead, use "
        "engine='processes', or pass randomness=False to allow it."
    )
    raise SharedGeneratorError(msg)
