"""What was done when, and as trace events: the JSON that ui.perfetto.dev and chrome://tracing open.

The consumer and each worker are shown as a thread, so that they appear below each other. Times are
microseconds from the first stamp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from dataporter.fetch.timing import CONSUMER, STAGES
from dataporter.tools.profile.measuring import Measured

_PROCESS = 1  # all events belong to it


class Span(NamedTuple):
    """Something that takes time. Stamps are nanoseconds."""

    worker: int
    kind: str  # "wait" or "step" of the consumer, or a stage of making a batch
    start: int
    end: int
    number: int  # of the batch


def spans_of(measured: Measured) -> Iterator[Span]:
    """Yield all that the consumer and the workers did."""
    for number, step in enumerate(measured.steps, 1):
        yield Span(CONSUMER, "wait", step.asked, step.got, number)
        yield Span(CONSUMER, "step", step.got, step.done, number)
    for batch in measured.made:
        for stage, start, end in batch.spans:
            yield Span(batch.worker, STAGES[stage], start, end, batch.number)


def worker_name(worker: int) -> str:
    """Return the name of a worker in tables."""
    return "consumer" if worker == CONSUMER else f"worker {worker}"


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
    takes = (
        Span(CONSUMER, "take", each.there, each.handed, each.number) for each in measured.handed
    )
    for span in (*spans_of(measured), *takes):
        is_consumers = span.kind in ("wait", "step")
        yield {
            "ph": "X",
            "name": span.kind,
            "cat": "consumer" if span.worker == CONSUMER else "worker",
            "pid": _PROCESS,
            "tid": _thread(span.worker),
            "ts": (span.start - began) / 1000,
            "dur": (span.end - span.start) / 1000,
            "args": {"delivered" if is_consumers else "batch": span.number},
        }
    for each in measured.handed:
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
