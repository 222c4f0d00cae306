"""The pictures of a profile's page: timeline, costs, waits, and batches that were ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from dataporter.fetch.timing import CONSUMER, STAGES
from dataporter.tools.pages.pictures import COLOURS, Greys, add_tip, picture
from dataporter.tools.profile.measuring import Measured, Step
from dataporter.tools.profile.report import Profile, worker_name
from dataporter.tools.profile.units import duration, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HALF = 560  # pixels of a picture in one of two columns
_STEPS = 24  # in the timeline: all steps of a run would be too thin to see
_MOST_BARS = 300
_NARROW_INCHES = 6
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


class Span(NamedTuple):
    """Something that takes time. Stamps are nanoseconds."""

    kind: str
    start: int
    end: int
    title: str
    is_part: bool = False  # of a span that is drawn behind it


def timeline(measured: Measured) -> Markup:
    """Draw a lane for the consumer and each worker, in a few steps from the middle."""
    window = window_of(measured.steps)
    lanes = [("consumer", _consumer_spans(measured))]
    workers = sorted({batch.worker for batch in measured.made} - {CONSUMER})
    lanes += [(worker_name(worker), _worker_spans(measured, worker)) for worker in workers]

    def draw(figure: Figure, greys: Greys) -> None:
        axes = _axes(figure, [name for name, _ in lanes])
        for row, (_, spans) in enumerate(lanes):
            for span in _within(spans, window):
                seconds = (span.start - window[0]) / 1e9, (span.end - span.start) / 1e9
                title = f"{span.title}: {duration(seconds[1])}"
                _bar(axes, greys, row, span.kind, *seconds, title, 0.45 if span.is_part else 0.8)
        axes.set_xlim(0, max(window[1] - window[0], 1) / 1e9)
        axes.xaxis.set_major_formatter(_formatter(duration))
        _legend(figure, greys, (span.kind for _, spans in lanes for span in spans))

    return picture("timeline", draw, 110 + 34 * len(lanes))


def window_of(steps: Sequence[Step]) -> tuple[int, int]:
    """The time that is shown: steps from the middle of the run."""
    first = max((len(steps) - _STEPS) // 2, 0)
    shown = steps[first : first + _STEPS]
    return shown[0].asked, shown[-1].done


def _within(spans: Iterable[Span], window: tuple[int, int]) -> Iterator[Span]:
    for span in spans:
        start, end = max(span.start, window[0]), min(span.end, window[1])
        if start < end:
            yield span._replace(start=start, end=end)


def _consumer_spans(measured: Measured) -> list[Span]:
    spans = []
    for number, step in enumerate(measured.steps, 1):
        spans.append(Span("wait", step.asked, step.got, f"wait for batch {number}"))
        spans.append(Span("step", step.got, step.done, f"step {number}"))
    own = _worker_spans(measured, CONSUMER)  # without workers, it makes batches while it waits
    return spans + [span._replace(is_part=True) for span in own]


def _worker_spans(measured: Measured, worker: int) -> list[Span]:
    return [
        Span(STAGES[stage], start, end, f"{STAGES[stage]} of batch {batch.number}")
        for batch in measured.made
        if batch.worker == worker
        for stage, start, end in batch.spans
    ]


def costs(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> Markup:
    """Draw the time of a batch, a wait and a step on one scale; a row consists of parts."""

    def draw(figure: Figure, greys: Greys) -> None:
        axes = _axes(figure, [name for name, _ in rows])
        for row, (_, parts) in enumerate(rows):
            start = 0.0
            for kind, seconds in parts:
                _bar(axes, greys, row, kind, start, seconds, f"{kind}: {duration(seconds)}")
                start += seconds
        axes.set_xlim(0, 1.05 * max(sum(cost for _, cost in parts) for _, parts in rows))
        axes.xaxis.set_major_formatter(_formatter(duration))
        _legend(figure, greys, (kind for _, parts in rows for kind, _ in parts))

    return picture("costs", draw, 100 + 34 * len(rows), _HALF)


def waits(measured: Measured) -> Markup:
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
        axes.yaxis.set_major_formatter(_formatter(duration))

    return picture("waits", draw, 220, _HALF)


def ready(profile: Profile) -> Markup:
    """Draw how many batches were ready when one was asked for, and how often."""
    rows = profile.ready_rows()

    def draw(figure: Figure, greys: Greys) -> None:
        axes = _axes(figure, [name for name, _ in rows])
        for row, (_, share) in enumerate(rows):
            _bar(axes, greys, row, "ready", 0, share, percent(share))
        axes.set(xlim=(0, 1), ylabel="batches ready")
        axes.xaxis.set_major_formatter(_formatter(percent))

    return picture("ready", draw, 60 + 30 * len(rows), _HALF)


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
    is_narrow = figure.get_figwidth() < _NARROW_INCHES
    figure.legend(handles=handles, loc="outside upper left", ncols=3 if is_narrow else 8)


def _formatter(write: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415  an extra, and slow to import

    return FuncFormatter(lambda value, _place: write(value) if value else "0")
