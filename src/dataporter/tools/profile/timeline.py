"""The timeline: a lane for the consumer and one for each worker, as pictures that stretch.

A picture is as wide as the page, whatever that is; what is written beside it is text of the
page and keeps its size. Shown are a few steps from the middle of the run, since all of them
would be lines too thin to see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from dataporter.fetch.timing import CONSUMER, STAGES
from dataporter.tools.pages import round_steps, svg
from dataporter.tools.profile.measuring import Measured, Step
from dataporter.tools.profile.report import worker_name
from dataporter.tools.profile.units import duration

_STEPS = 24  # that are shown
_WIDTH = 1000  # of a picture, in units of its own
_THINNEST = 0.7  # of them, so that nothing is too thin to see
_MOST_BARS = 300


class Span(NamedTuple):
    """Something that takes time."""

    kind: str
    start: int
    end: int
    title: str
    is_part: bool = False  # of a span that is drawn already, and goes on behind it


def window_of(steps: Sequence[Step]) -> tuple[int, int]:
    """The stretch of time that is shown: steps from the middle of the run."""
    first = max((len(steps) - _STEPS) // 2, 0)
    shown = steps[first : first + _STEPS]
    return shown[0].asked, shown[-1].done


def timeline(measured: Measured) -> str:
    """The lanes of all who do something, under each other."""
    window = window_of(measured.steps)
    lanes = [("consumer", _consumer_spans(measured))]
    workers = sorted({batch.worker for batch in measured.made} - {CONSUMER})
    lanes += [(worker_name(worker), _worker_spans(measured, worker)) for worker in workers]
    rows = "".join(_lane(name, spans, window) for name, spans in lanes)
    length = max(window[1] - window[0], 1) / 1e9
    ticks = "".join(
        f'<span style="--at:{tick / length:.4f}">{duration(tick) if tick else 0}</span>'
        for tick in round_steps(length)
    )
    return f'{rows}<div class="lane ticks"><b></b><div>{ticks}</div></div>'


def _consumer_spans(measured: Measured) -> list[Span]:
    spans = []
    for number, step in enumerate(measured.steps, 1):
        spans.append(Span("wait", step.asked, step.got, f"wait for batch {number}"))
        spans.append(Span("step", step.got, step.done, f"step {number}"))
    own = _worker_spans(measured, CONSUMER)  # what it makes itself, it makes while it waits
    return spans + [span._replace(is_part=True) for span in own]


def _worker_spans(measured: Measured, worker: int) -> list[Span]:
    return [
        Span(STAGES[stage], start, end, f"{STAGES[stage]} of batch {batch.number}")
        for batch in measured.made
        if batch.worker == worker
        for stage, start, end in batch.spans
    ]


def _lane(name: str, spans: Iterable[Span], window: tuple[int, int]) -> str:
    scale = _WIDTH / max(window[1] - window[0], 1)
    rectangles = []
    for span in spans:
        start, end = max(span.start, window[0]), min(span.end, window[1])
        if start >= end:
            continue
        width = max((end - start) * scale, _THINNEST)
        title = escape(f"{span.title}: {duration((span.end - span.start) / 1e9)}")
        rectangles.append(
            f'<rect class="{span.kind}" x="{(start - window[0]) * scale:.2f}" '
            f'y="{3 * span.is_part}" width="{width:.2f}" height="{10 - 3 * span.is_part}">'
            f"<title>{title}</title></rect>"
        )
    return f'<div class="lane"><b>{escape(name)}</b>{picture(rectangles, 10, name)}</div>'


def waits_picture(measured: Measured) -> str:
    """How long each batch of the run was waited for; the line is the length of a step."""
    waits = [(step.got - step.asked) / 1e9 for step in measured.steps]
    each = -(-len(waits) // _MOST_BARS)  # of several, the longest is shown
    bars = [max(waits[start : start + each]) for start in range(0, len(waits), each)]
    step = measured.step_seconds
    # One long wait, such as the first, is not to make all others invisible.
    top = max(sorted(bars)[int(0.95 * (len(bars) - 1))], step, 1e-6) * 1.2
    width = _WIDTH / len(bars)
    rectangles = [
        f'<rect class="wait" x="{number * width:.2f}" y="{100 - height:.2f}" '
        f'width="{max(width * 0.8, _THINNEST):.2f}" height="{height:.2f}">'
        f"<title>batch {number * each + 1}: {duration(wait)}</title></rect>"
        for number, wait in enumerate(bars)
        for height in [min(wait / top, 1) * 100]
    ]
    if step:
        level = 100 - step / top * 100
        rectangles.append(
            f'<line class="level" x1="0" x2="{_WIDTH}" y1="{level:.2f}" y2="{level:.2f}"/>'
        )
    return picture(rectangles, 100, "waits")


def stacked(parts: Sequence[tuple[str, float]], whole: float, name: str) -> str:
    """Parts beside each other, on a scale on which `whole` is the width of the page."""
    rectangles, start = [], 0.0
    for kind, seconds in parts:
        width = seconds / whole * _WIDTH
        title = f"{kind}: {duration(seconds)}"
        rectangles.append(
            f'<rect class="{kind}" x="{start:.2f}" y="0" width="{width:.2f}" height="10">'
            f"<title>{title}</title></rect>"
        )
        start += width
    return picture(rectangles, 10, name)


def picture(shapes: Sequence[str], height: int, name: str) -> str:
    """A picture as wide as the page, with a name for those who do not see it."""
    return svg(f'role="img" aria-label="{escape(name)}"', shapes, (_WIDTH, height))
