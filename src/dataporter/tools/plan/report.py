"""The figures of a planned run in words and pictures, a verdict on the shuffle, and warnings."""

from __future__ import annotations

import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dataporter.layout import Row, counted
from dataporter.tools.pictures import COLOURS, Greys, add_tip, in_words, is_narrow, png, svg
from dataporter.tools.plan.figures import Fetching, PlanFigures, Shuffle
from dataporter.tools.report import Headline, Part, Picture, Rows, Words, as_page
from dataporter.tools.units import duration, long_duration, percent, rate, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 400  # of a curve
_BARS = 64  # nodes that are shown one by one
_USED, _FRESH, _RESUMED, _CACHE = COLOURS[2], COLOURS[2], COLOURS[1], COLOURS[0]
_LARGE = 64 << 20  # decoded bytes of a block
_MANY_READS = 1.1  # of a block
_PERFECT = 0.05  # inflation that nobody could measure
_SLIGHT = 0.5
_SIZE, _SIZE_WITHOUT_CACHE = (1000, 900), (1000, 600)  # pixels


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


def parts_of(figures: PlanFigures) -> list[Part]:
    """Return what the command shows."""
    warnings = [Words([f"Warning: {text}"], "warning") for text in warnings_of(figures)]
    rows = Rows(rows_of(figures))
    return [Headline(figures.root), rows, *warnings, *pictures_of(figures)]


def drawn(figures: PlanFigures, suffix: str) -> str | bytes:
    """Draw a plan as the contents of a file .svg, .png or .html."""
    if suffix == ".html":
        return as_page("plan", f"Plan of a run over {figures.root}", parts_of(figures))
    pixels = _SIZE if figures.needs_cache else _SIZE_WITHOUT_CACHE
    return (png if suffix == ".png" else svg)(partial(draw_all, figures), pixels)


def rows_of(figures: PlanFigures) -> list[Row]:
    """Headings, and the figures under each."""
    found = [("data", _data(figures)), ("run", _run(figures)), ("order", _order(figures))]
    found.append(("reads", _reads(figures, figures.fresh)))
    if figures.resumed:
        found.append(("resumed", _resumed(figures, figures.resumed)))
    found.append(("in use", _in_use(figures)))
    if figures.needs_cache:
        ahead = (
            f"the porter of each rank brings up to {size(figures.ahead_bytes)} of the blocks that "
            "come next, as far as the cache has room"
        )
        found += [("ahead", ahead), ("cache", _cache(figures))]
    found += [("first batch", _first_batch(figures)), ("link", _link(figures))]
    if figures.shuffle:
        found.append(("shuffle", _shuffle(figures.shuffle)))
    return found


def _data(figures: PlanFigures) -> str:
    bytes_ = f"{size(figures.stored_bytes)} stored, {size(figures.decoded_bytes)} decoded"
    return (
        f"{counted(figures.samples, 'sample')} in {counted(figures.blocks, 'block')} of format "
        f"{figures.format}; {bytes_}"
    )


def _run(figures: PlanFigures) -> str:
    run = figures.run
    return (
        f"{counted(run.nodes, 'node')} of {counted(run.ranks, 'rank')} with "
        f"{counted(run.workers, 'worker')}, batches of {run.batch:,}: "
        f"{counted(figures.steps, 'step')} of {run.step_size:,} samples in an epoch"
    )


def _order(figures: PlanFigures) -> str:
    if figures.order == "tracks":
        return f"{counted(figures.tracks or 0, 'track')} side by side"
    if figures.order == "in order":
        return "not shuffled: one block after the other"
    return "shuffled as a whole, since the data is small: all blocks are in use"


def _reads(figures: PlanFigures, fetching: Fetching) -> str:
    at_most = "at most " if figures.is_stored_at_most else ""
    nodes = f"a block is read by {fetching.reads_per_block:.2f} nodes"
    text = f"{nodes}; a node fetches {at_most}{size(fetching.bytes_per_node)} in an epoch"
    if fetching.most_bytes > 1.01 * fetching.bytes_per_node:
        text += f", one of them {size(fetching.most_bytes)}"
    if figures.is_stored_at_most:
        text += " (the stored bytes of the chosen columns are not known, these are of all)"
    if fetching.evaluated < fetching.steps:
        text += f"; from {fetching.evaluated:,} of {counted(fetching.steps, 'step')}"
    return text


def _resumed(figures: PlanFigures, fetching: Fetching) -> str:
    at_most = "at most " if figures.is_stored_at_most else ""
    return (
        f"at position {fetching.position:,}, saved with other batches or ranks, with empty caches: "
        f"a block is read by {fetching.reads_per_block:.2f} nodes; a node fetches "
        f"{at_most}{size(fetching.bytes_per_node)} in the rest of the epoch"
    )


def _in_use(figures: PlanFigures) -> str:
    used = figures.in_use
    text = (
        f"{counted(round(used.blocks_mean), 'block')} at a time on a node, "
        f"{size(used.bytes_mean)} decoded; at most {round(used.blocks_most):,} blocks and "
        f"{size(used.bytes_most)}"
    )
    if figures.needs_cache:
        return f"{text}, the least that a cache must hold"
    return f"{text}. Files are mapped where they lie: there is no cache"


def _cache(figures: PlanFigures) -> str:
    cache = figures.cache
    if cache is None:
        return (
            f"{size(figures.good_cache)} on each node hold the blocks in use and some ahead; "
            f"{size(figures.decoded_bytes)} hold all data, and later epochs fetch nothing"
        )
    if not cache.is_enough:
        return f"{size(cache.bytes)}: too small"
    text = f"{size(cache.bytes)}: enough; it serves {percent(cache.later_epochs)} of later epochs"
    if cache.second_epoch < cache.later_epochs:
        text += (
            f", {percent(cache.second_epoch)} of the second one: each node reads other blocks in "
            "each epoch"
        )
    return text


def _first_batch(figures: PlanFigures) -> str:
    first = figures.first_batch
    at_most = "at most " if figures.is_stored_at_most else ""
    text = (
        f"{at_most}{long_duration(first.seconds)}: a node fetches {counted(first.blocks, 'block')} "
        f"({size(first.bytes)}) at {size(figures.run.bandwidth)} a second"
    )
    if first.round_trips:
        trips = counted(first.round_trips, "round trip")
        text += f", after {trips} of {duration(figures.run.latency)}"
    return f"{text}; without the start of processes and decoding"


def _link(figures: PlanFigures) -> str:
    fresh = figures.fresh
    least = "at least " if figures.is_stored_at_most else ""
    most = "at most " if figures.is_stored_at_most else ""
    return (
        f"an epoch is fetched in {most}{long_duration(fresh.seconds)}: {least}"
        f"{rate(fresh.samples_per_second)} samples a second for all nodes together"
    )


def _shuffle(shuffle: Shuffle) -> str:
    met = (
        f"in a step, a sample meets {_few(shuffle.mates)} others of its block (perfect shuffle: "
        f"{_few(shuffle.mates_if_perfect)})"
    )
    if shuffle.inflation < _PERFECT:
        return f"as good as a perfect shuffle: {met}"
    quality = "slightly worse" if shuffle.inflation < _SLIGHT else "worse"
    return (
        f"{quality} than a perfect shuffle: {met}. If samples of a block have the correlation r, "
        f"the variance of a step's mean is 1 + {shuffle.inflation:.2g} r times as large"
    )


def _few(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"  # noqa: PLR2004


def warnings_of(figures: PlanFigures) -> list[str]:
    """Say what is wrong with the plan, and what to do."""
    checks = (_about_cache, _about_tracks, _about_reads, _about_blocks)
    return [text for check in checks if (text := check(figures)) is not None]


def _about_cache(figures: PlanFigures) -> str | None:
    cache, needed = figures.cache, figures.in_use.bytes_most
    if cache is None:
        return None
    if not cache.is_enough:
        return (
            f"The cache is too small: blocks in use on a node take {size(needed)}, and --cache is "
            f"{size(cache.bytes)}. The run would end with an error. Give it a larger cache, or "
            "write smaller blocks."
        )
    if not cache.has_room_ahead:
        return (
            f"The cache has little room for blocks ahead: {size(needed)} of its "
            f"{size(cache.bytes)} are in use, and steps may wait for blocks. Give it "
            f"{size(figures.good_cache)} or more."
        )
    return None


def _about_tracks(figures: PlanFigures) -> str | None:
    tracks, step = figures.tracks, figures.run.step_size
    if tracks is None or tracks >= step:
        return None
    wanted = 8 << (step - 1).bit_length()
    return (
        f"There are fewer tracks than samples in a step, {tracks:,} and {step:,}: a step has about "
        f"{_few(step / tracks)} samples of each block that it reads. The number of blocks, "
        f"{figures.blocks:,}, allows no more tracks. Write smaller blocks, {wanted:,} or more."
    )


def _about_reads(figures: PlanFigures) -> str | None:
    reads = figures.fresh.reads_per_block
    if figures.run.nodes == 1 or reads <= _MANY_READS:
        return None
    times = f"blocks are fetched by {reads:.2f} nodes in the mean"
    if figures.order == "in order":
        return (
            f"Without a shuffle, {times}: ranks take turns, sample by sample. Shuffle, so that "
            "each node reads its own blocks."
        )
    if figures.order == "whole shuffle":
        return f"Small data is shuffled as a whole, so {times}. A cache for all of it is small too."
    return (
        f"Ranks do not divide the tracks: {times}. With a power of two of nodes, ranks and samples "
        "in a batch, each block is fetched by one node."
    )


def _about_blocks(figures: PlanFigures) -> str | None:
    if figures.block_bytes <= _LARGE:
        return None
    return (
        f"Blocks are large: {size(figures.block_bytes)} decoded (median). The first batch and the "
        "cache grow with them. Write the files again with blocks of 8 to 32 MB."
    )
