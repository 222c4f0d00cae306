"""The inline engine: each batch is fetched when it is asked for, by the thread that asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataporter.engine.pinning import can_pin, pinned, pinned_empty
from dataporter.engine.results import Results
from dataporter.fetch import Failed, Fetches
from dataporter.fetch.randomness import current_key, leave_for
from dataporter.fetch.tasks import Task
from dataporter.fetch.timing import PIN


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
