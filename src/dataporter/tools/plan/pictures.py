"""The pictures of a plan: bytes in use, fetched bytes by node, and what a cache is good for."""

from __future__ import annotations

import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dataporter.tools.pictures import COLOURS, Greys, add_tip, in_words, is_narrow
from dataporter.tools.plan.figures import PlanFigures
from dataporter.tools.report import Picture
from dataporter.tools.units import percent, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 400  # of a curve
_BARS = 64  # nodes that are shown one by one
_USED, _FRESH, _RESUMED, _CACHE = COLOURS[2], COLOURS[2], COLOURS[1], COLOURS[0]


def pictures_of(figures: PlanFigures) -> list[Picture]:
    """Return the pictures of a page."""
    drawings = [("in-use", draw_in_use), ("nodes", draw_nodes)]
    if figures.needs_cache:
        drawings.append(("cache", draw_cache))
    return [Picture(name, partial(draw, figures), 280) for name, draw in drawings]


def draw_all(figures: PlanFigures, figure: Figure, greys: Greys) -> None:
    """Draw all of them, one below the other."""
    pictures = pictures_of(figures)
    panels: Any = figure.subfigures(len(pictures), 1)
    for picture, panel in zip(pictures, panels, strict=True):
        picture.draw(panel, greys)


def draw_in_use(figures: PlanFigures, figure: Any, greys: Greys) -> None:
    """Draw the bytes in use on a node along the steps that were evaluated."""
    axes: Axes = figure.subplots()
    most, mean = figures.curve
    steps = np.arange(len(most))
    chunk = -(-len(most) // _POINTS)
    starts = np.arange(0, len(most), chunk)
    counts = np.diff(np.append(starts, len(most)))
    means = np.add.reduceat(mean, starts) / counts
    highest = np.maximum.reduceat(most, starts)
    axes.plot(steps[starts], means, color=greys.pale, linewidth=4, label="mean of nodes")
    axes.plot(steps[starts], highest, color=_USED, label="node with most")
    top = float(most.max())
    if figures.cache is not None:
        _line(axes, figures.cache.bytes, top, f"cache: {size(figures.cache.bytes)}")
    axes.set(xlabel="step of an epoch", xlim=(0, max(len(most) - 1, 1)))
    _entitle(figure, axes, "Decoded bytes of the blocks in use on a node")
    # A cache that is much larger stays above the picture.
    cache = 0 if figures.cache is None else figures.cache.bytes
    axes.set_ylim(0, 1.25 * (max(top, cache) if cache <= 4 * top else top))
    axes.yaxis.set_major_formatter(in_words(size))
    axes.legend(loc="lower right", ncols=1 if is_narrow(figure) else 3)


def _line(axes: Axes, value: float, top: float, label: str) -> None:
    is_seen = value <= 4 * top
    axes.axhline(
        value if is_seen else 1.2 * top,
        color=_CACHE,
        linestyle="--" if is_seen else ":",
        label=label if is_seen else f"{label}, far above",
    )


def draw_nodes(figures: PlanFigures, figure: Any, greys: Greys) -> None:
    """Draw the bytes that each node fetches in an epoch, and after a resume."""
    axes: Axes = figure.subplots()
    runs = [("an epoch", figures.fresh, _FRESH)]
    if figures.resumed is not None:
        runs.append(("the rest after a resume", figures.resumed, _RESUMED))
    nodes = np.arange(min(figures.run.nodes, _BARS))
    width = 0.8 / len(runs)
    for number, (name, fetching, colour) in enumerate(runs):
        heights = fetching.by_node[:_BARS]
        bars = axes.bar(nodes + number * width, heights, width, color=colour, label=name)
        for bar, node, height in zip(bars, nodes.tolist(), heights, strict=True):
            add_tip(bar, f"node {node}: {size(height)}")
    share = figures.stored_bytes / figures.run.nodes
    axes.axhline(share, color=greys.ink, linestyle="--", label="its share of all data")
    title = "Stored bytes that each node fetches, into an empty cache"
    if figures.run.nodes > _BARS:
        title += f" (the first {_BARS} of {figures.run.nodes:,})"
    _entitle(figure, axes, title)
    room = 1.7 if is_narrow(figure) else 1.3  # above the bars, for the legend
    axes.set(xlabel="node", ylim=(0, room * max(share, figures.fresh.most_bytes)))
    axes.yaxis.set_major_formatter(in_words(size))
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="upper right", ncols=1 if is_narrow(figure) else 3)


def draw_cache(figures: PlanFigures, figure: Any, greys: Greys) -> None:
    """Draw the share of later epochs that a cache serves, by its size."""
    axes: Axes = figure.subplots()
    least, everything = figures.in_use.bytes_most, float(figures.decoded_bytes)
    second = figures.fresh.reads_per_block / figures.run.nodes
    sizes = np.linspace(min(least, everything), everything, 50)
    axes.axvspan(0, least, color=greys.line, label="too small", linewidth=0)
    axes.plot(sizes, sizes / everything, color=_USED, label="later epochs")
    if figures.run.nodes > 1:
        shares = np.minimum(sizes / everything, second)
        axes.plot(sizes, shares, color=_RESUMED, label="second epoch")
    if figures.cache is not None:
        at = min(figures.cache.bytes, 1.05 * everything)
        axes.axvline(at, color=_CACHE, linestyle="--", label=f"{size(figures.cache.bytes)}")
    _entitle(figure, axes, "Share of an epoch that comes from the cache")
    axes.set(xlabel="cache of a node", xlim=(0, 1.1 * everything), ylim=(0, 1.05))
    axes.xaxis.set_major_formatter(in_words(size))
    axes.yaxis.set_major_formatter(in_words(percent))
    axes.legend(loc="center right")


def _entitle(figure: Any, axes: Axes, title: str) -> None:
    axes.set_title(textwrap.fill(title, 40) if is_narrow(figure) else title)
