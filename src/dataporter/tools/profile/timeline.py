"""The records of a run by time: pictures of a page, and trace events.

The trace is the JSON that ui.perfetto.dev and chrome://tracing open. The consumer and each worker
are shown as a thread, so that they appear below each other. Times are microseconds from the first
stamp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dataporter.fetch.timing import CONSUMER, STAGES
from dataporter.tools.pictures import COLOURS, Greys, add_tip, in_words, is_narrow
from dataporter.tools.profile.figures import Figures
from dataporter.tools.profile.measuring import Measured, Step
from dataporter.tools.report import Picture
from dataporter.tools.units import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PROCESS = 1  # all events belong to it
_STEPS = 24  # in the timeline: all steps of a run would be too thin to see
_MOST_BARS = 300
_COLOURS = {
    "wait": COLOURS[0],
    "write": COLOURS[1],
    "fetch": COLOURS[2],
    "pin": COLOURS[3],
    "collate": COLOURS[4],
    "state": COLOURS[5],
    "convert": COLOURS[6],
}


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


def timeline(measured: Measured) -> Picture:
    """Draw a lane for the consumer and each worker, in a few steps from the middle."""
    from matplotlib.patches import Patch  # noqa: PLC0415  an extra, and slow to import

    window = window_of(measured.steps)
    lanes: dict[int, list[Span]] = {CONSUMER: []}
    for span in sorted(spans_of(measured), key=lambda span: span.worker):
        start, end = max(span.start, window[0]), min(span.end, window[1])
        within = lanes.setdefault(span.worker, [])
        if start < end:
            within.append(span._replace(start=start, end=end))

    def draw(figure: Figure, greys: Greys) -> None:
        axes = figure.subplots()
        for row, spans in enumerate(lanes.values()):
            for span in spans:
                start, length = (span.start - window[0]) / 1e9, (span.end - span.start) / 1e9
                # Without workers, the consumer makes batches while it waits.
                is_within = span.worker == CONSUMER and span.kind not in ("wait", "step")
                colour = _COLOURS.get(span.kind, greys.pale)
                [bar] = axes.barh(row, length, 0.4 if is_within else 0.8, start, color=colour)
                add_tip(bar, f"{span.kind}, batch {span.number}: {duration(length)}")
        axes.set_yticks(range(len(lanes)), [worker_name(worker) for worker in lanes])
        axes.invert_yaxis()
        axes.set_xlim(0, max(window[1] - window[0], 1) / 1e9)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter(in_words(duration))
        kinds = dict.fromkeys(span.kind for spans in lanes.values() for span in spans)
        handles = [Patch(color=_COLOURS.get(kind, greys.pale), label=kind) for kind in kinds]
        figure.legend(
            handles=handles, loc="outside upper left", ncols=3 if is_narrow(figure) else 8
        )

    caption = "A few steps from the middle of the run."
    if not measured.made:
        caption += " For this loader only waits and steps are visible."
    elif not measured.subject.num_workers:
        caption += " Without workers, the consumer makes its batches while it waits."
    return Picture("timeline", draw, 110 + 34 * len(lanes), "Timeline", caption)


def window_of(steps: Sequence[Step]) -> tuple[int, int]:
    """The time that is shown: steps from the middle of the run."""
    first = max((len(steps) - _STEPS) // 2, 0)
    shown = steps[first : first + _STEPS]
    return shown[0].asked, shown[-1].done


def waits(measured: Measured, figures: Figures) -> Picture:
    """Draw the wait for each batch, and the length of a step."""
    seconds = [(step.got - step.asked) / 1e9 for step in measured.steps]
    each = -(-len(seconds) // _MOST_BARS)  # of several, the longest is shown
    numbers = range(0, len(seconds), each)
    bars = [max(seconds[start : start + each]) for start in numbers]
    step = measured.step_seconds
    # One long wait, such as the first, must not make all others invisible.
    top = max(sorted(bars)[int(0.95 * (len(bars) - 1))], step, 1e-6) * 1.2

    def draw(figure: Figure, greys: Greys) -> None:
        axes = figure.subplots()
        heights = [min(wait, top) for wait in bars]
        places = [number + 1 for number in numbers]
        drawn = axes.bar(places, heights, 0.8 * each, align="edge", color=_COLOURS["wait"])
        for shape, number, wait in zip(drawn, places, bars, strict=True):
            add_tip(shape, f"batch {number}: {duration(wait)}")
        if step:
            axes.axhline(step, color=greys.ink, linestyle="--", label="a step")
            axes.legend(loc="upper right")
        axes.set(ylim=(0, top), xlabel="batch")
        axes.yaxis.set_major_formatter(in_words(duration))

    caption = (
        "From the first batch to the last: half of the waits are shorter than "
        f"{duration(figures.wait.p50)}, 99 of 100 shorter than {duration(figures.wait.p99)}."
    )
    return Picture("waits", draw, 220, "Wait for each batch", caption)
