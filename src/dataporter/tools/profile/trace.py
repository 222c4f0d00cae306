"""A profile as trace events, the JSON that ui.perfetto.dev and chrome://tracing open.

The consumer and each worker are shown as a thread, so that they appear below each other. Times are
microseconds from the first stamp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dataporter.fetch.timing import CONSUMER, STAGES
from dataporter.tools.profile.measuring import Measured
from dataporter.tools.profile.report import worker_name

_PROCESS = 1  # all events belong to it


def trace_of(measured: Measured) -> str:
    """Return the text of a JSON file with all records."""
    began = min(
        [measured.steps[0].asked, *(batch.spans[0][1] for batch in measured.made if batch.spans)]
    )
    # An event comes before those that it encloses.
    events = sorted(_events(measured, began), key=lambda event: (event["ts"], -event.get("dur", 0)))
    named = [*_names(measured), *events]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": named}, separators=(",", ":"))


def _names(measured: Measured) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", 0, {"name": str(measured.subject)})
    for worker in sorted({CONSUMER, *(batch.worker for batch in measured.made)}):
        thread = _thread(worker)
        yield _metadata("thread_name", thread, {"name": worker_name(worker)})
        yield _metadata("thread_sort_index", thread, {"sort_index": thread})


def _metadata(name: str, thread: int, given: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": _PROCESS, "tid": thread, "ts": 0, "args": given}


def _events(measured: Measured, began: int) -> Iterator[dict[str, Any]]:
    def span(name: str, start: int, end: int, worker: int, **given: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "name": name,
            "cat": "consumer" if worker == CONSUMER else "worker",
            "pid": _PROCESS,
            "tid": _thread(worker),
            "ts": (start - began) / 1000,
            "dur": (end - start) / 1000,
            "args": given,
        }

    for number, step in enumerate(measured.steps, 1):
        yield span("wait", step.asked, step.got, CONSUMER, delivered=number)
        yield span("step", step.got, step.done, CONSUMER, delivered=number)
    for batch in measured.made:
        for stage, start, end in batch.spans:
            yield span(STAGES[stage], start, end, batch.worker, batch=batch.number)
    for each in measured.handed:
        yield span("take", each.there, each.handed, CONSUMER, batch=each.number)
        yield {
            "ph": "C",
            "name": "batches ready",
            "pid": _PROCESS,
            "tid": _thread(CONSUMER),
            "ts": (each.asked - began) / 1000,
            "args": {"ready": each.ready},
        }


def _thread(worker: int) -> int:
    return worker - CONSUMER + 1
