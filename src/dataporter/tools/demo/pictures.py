"""The pictures of the demo: loss curves, and who saw which sample in the epoch of the kill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dataporter.tools.demo.runs import Story, seen_with_torch
from dataporter.tools.demo.verdict import Verdict
from dataporter.tools.pages.pictures import COLOURS, Greys

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOBODY = 0
_COLUMNS = 64
_TIMES = {"seen once": COLOURS[2], "seen twice": COLOURS[0]}

Map = NDArray[np.int8]  # one value for each sample of the dataset; shape (rows, _COLUMNS)


def draw_curves(story: Story, figure: Figure, greys: Greys) -> None:
    """Draw the losses of the three runs, each line over the previous one."""
    _curves(figure.subplots(), story, greys)


def draw_samples(story: Story, figure: Figure, _greys: Greys) -> None:
    """Draw the samples of the dataset, with dataporter and with torch's DataLoader."""
    _maps(figure.subplots(2), story)


def draw_all(story: Story, verdict: Verdict, figure: Figure, greys: Greys) -> None:
    """Draw both under the verdict."""
    figure.suptitle(verdict.words)
    curves, *maps = figure.subplots(3)
    _curves(curves, story, greys)
    _maps(maps, story)


def ranks_of(story: Story) -> list[str]:
    """Names of all ranks, first those before the kill."""
    return [
        *(f"rank {rank} before the kill" for rank in range(story.before.world_size)),
        *(f"rank {rank} after it" for rank in range(story.after.world_size)),
    ]


def who_saw(story: Story) -> Map:
    """The rank that trained on each sample for good: its place in `ranks_of`, from 1."""
    seen = _blank(story)
    for step in story.kept:
        if step.epoch == story.epoch:
            is_before = step.step <= story.resumed_from
            first = 1 if is_before else 1 + story.before.world_size
            world_size = (story.before if is_before else story.after).world_size
            seen.ravel()[list(step.ids)] = first + np.arange(len(step.ids)) % world_size
    return seen


def times_seen_with_torch(story: Story) -> Map:
    """The number of times that torch's DataLoader delivers each sample."""
    seen = _blank(story)
    for index, count in seen_with_torch(story).items():
        seen.ravel()[index] = count
    return seen


def _blank(story: Story) -> Map:
    return np.full((-(-story.after.samples // _COLUMNS), _COLUMNS), NOBODY, np.int8)


def _curves(axes: Axes, story: Story, greys: Greys) -> None:
    kill, start = story.killed_after, story.resumed_from
    for steps, label, colour, width in (
        (story.whole, "never interrupted (wide)", greys.pale, 7),
        (story.killed, f"until the kill after step {kill}", COLOURS[0], 3.5),
        (story.resumed, f"resumed after step {start}", COLOURS[3], 1.5),
    ):
        losses = [step.loss for step in steps]
        axes.plot([step.step for step in steps], losses, color=colour, linewidth=width, label=label)
    axes.axvline(kill, color=COLOURS[0], linestyle="--", linewidth=1)
    axes.axvline(start, color=COLOURS[3], linestyle=":", linewidth=1)
    axes.set(xlabel="step", ylabel="loss", xlim=(1, story.whole[-1].step), ylim=(0, None))
    axes.legend(loc="upper right")


def _maps(axes: Sequence[Axes], story: Story) -> None:
    ranks = dict(zip(ranks_of(story), COLOURS, strict=False))
    _map(axes[0], "dataporter: who saw each sample", who_saw(story), ranks)
    title = "torch's DataLoader: how often each sample is seen"
    _map(axes[1], title, times_seen_with_torch(story), _TIMES)


def _map(axes: Axes, title: str, values: Map, colours: dict[str, str]) -> None:
    """Draw one cell for each sample, and the meaning of the colours below."""
    from matplotlib.colors import ListedColormap  # noqa: PLC0415  an extra, and slow to import
    from matplotlib.patches import Patch  # noqa: PLC0415  likewise

    shown = np.ma.masked_equal(values, NOBODY)
    cells = ListedColormap(list(colours.values()))
    axes.imshow(shown, cells, vmin=1, vmax=len(colours), aspect="auto", interpolation="none")
    axes.set(xticks=[], yticks=[], title=title)
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 0), ncols=2)
