"""The pictures of a profile's page: timeline, costs, waits, and batches that were ready."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dataporter.fetch.timing import CONSUMER
from dataporter.layout import counted
from dataporter.tools.pictures import COLOURS, Greys, add_tip, in_words, is_narrow
from dataporter.tools.profile.figures import Figures
from dataporter.tools.profile.measuring import Measured, Step
from dataporter.tools.profile.trace import Span, spans_of, worker_name
from dataporter.tools.report import Picture
from dataporter.tools.units import duration, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STEPS = 24  # in the timeline: all steps of a run would be too thin to see
_MOST_BARS = 300
_COLOURS = {
    "wait": COLOURS[0],
    "write": COLOURS[1],
    "fetch": COLOURS[2],
    "ready": COLOURS[2],
    "pin": COLOURS[3],
    "collate": COLOURS[4],
    "state": COLOURS[5],
    "convert": COLOURS[6],
}


def timeline(measured: Measured) -> Picture:
    """Draw a lane for the consumer and each worker, in a few steps from the middle."""
    window = window_of(measured.steps)
    lanes: dict[int, list[Span]] = {CONSUMER: []}
    for span in sorted(spans_of(measured), key=lambda span: span.worker):
        start, end = max(span.start, window[0]), min(span.end, window[1])
        within = lanes.setdefault(span.worker, [])
        if start < end:
            within.append(span._replace(start=start, end=end))

    def draw(figure: Figure, greys: Greys) -> None:
        axes = _axes(figure, [worker_name(worker) for worker in lanes])
        for row, spans in enumerate(lanes.values()):
            for span in spans:
                is_own = span.kind in ("wait", "step")
                what = {"wait": "wait for batch", "step": "step"}.get(
                    span.kind, f"{span.kind} of batch"
                )
                start, length = (span.start - window[0]) / 1e9, (span.end - span.start) / 1e9
                # Without workers, the consumer makes batches while it waits.
                height = 0.8 if is_own or span.worker != CONSUMER else 0.45
                title = f"{what} {span.number}: {duration(length)}"
                _bar(axes, greys, row, span.kind, start, length, title, height)
        axes.set_xlim(0, max(window[1] - window[0], 1) / 1e9)
        axes.xaxis.set_major_formatter(in_words(duration))
        _legend(figure, greys, (span.kind for spans in lanes.values() for span in spans))

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


def costs(measured: Measured, figures: Figures) -> Picture:
    """Draw the time of a batch, a wait and a step on one scale; a row consists of parts."""
    makers, step = measured.subject.makers, measured.step_seconds
    made = [(name, spread.mean / makers) for name, spread in figures.stages.items()]
    rows = {
        "a batch": made,
        "a wait": [("wait", figures.wait.mean)],
        "a step": [("step", step)] if step else [],
    }
    rows = {name: parts for name, parts in rows.items() if parts}

    def draw(figure: Figure, greys: Greys) -> None:
        axes = _axes(figure, list(rows))
        for row, parts in enumerate(rows.values()):
            start = 0.0
            for kind, seconds in parts:
                _bar(axes, greys, row, kind, start, seconds, f"{kind}: {duration(seconds)}")
                start += seconds
        axes.set_xlim(0, 1.05 * max(sum(cost for _, cost in parts) for parts in rows.values()))
        axes.xaxis.set_major_formatter(in_words(duration))
        _legend(figure, greys, (kind for parts in rows.values() for kind, _ in parts))

    caption = "Means of the whole run."
    if figures.making:
        caption = (
            f"A batch takes a worker {duration(figures.making)}: {counted(makers, 'worker')} can "
            f"make one every {duration(figures.making / makers)}."
        )
    title = "Cost of a batch, beside a step"
    return Picture("costs", draw, 100 + 34 * len(rows), title, caption, is_half=True)


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
        drawn = axes.bar(places, heights, 0.8 * each, align="edge", color=_colour("wait", greys))
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
    return Picture("waits", draw, 220, "Wait for each batch", caption, is_half=True)


def ready(rows: Sequence[tuple[str, float, str]]) -> Picture:
    """Draw how many batches were ready when one was asked for, and how often."""

    def draw(figure: Figure, greys: Greys) -> None:
        axes = _axes(figure, [name for name, _, _ in rows])
        for row, (_, share, words) in enumerate(rows):
            _bar(axes, greys, row, "ready", 0, share, words)
        axes.set(xlim=(0, 1), ylabel="batches ready")
        axes.xaxis.set_major_formatter(in_words(percent))

    caption = "How many batches were ready when one was asked for, and how often."
    return Picture("ready", draw, 60 + 30 * len(rows), "Ready batches", caption, is_half=True)


def _axes(figure: Figure, rows: Sequence[str]) -> Axes:
    """Axes with a named row for each bar, from top to bottom."""
    axes = figure.subplots()
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)
    return axes


def _bar(
    axes: Axes,
    greys: Greys,
    row: int,
    kind: str,
    start: float,
    length: float,
    title: str,
    height: float = 0.8,
) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415  an extra, and slow to import

    bottom = row + 0.4 - height  # rows count downwards
    shape = Rectangle((start, bottom), length, height, color=_colour(kind, greys), linewidth=0)
    axes.add_patch(shape)
    add_tip(shape, title)


def _colour(kind: str, greys: Greys) -> str:
    return _COLOURS.get(kind, greys.pale)


def _legend(figure: Figure, greys: Greys, kinds: Iterable[str]) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415  likewise

    handles = [Patch(color=_colour(kind, greys), label=kind) for kind in dict.fromkeys(kinds)]
    columns = 3 if is_narrow(figure) else 8
    figure.legend(handles=handles, loc="outside upper left", ncols=columns)
