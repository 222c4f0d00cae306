"""Charts of measured figures: one bar each, drawn from `measured.json`.

Every bar names a row of a table in the documentation, and its figure as it stands there. The
tests look it up, so a chart cannot show what no page explains.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from dataporter.tools.pictures import COLOURS, Greys, svg

CHARTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("measured.json").read_text(encoding="utf-8")
)
_WIDTH, _BAR, _AROUND = 520, 24, 96  # pixels: of a chart; the height of a bar, and of all else
_ROOM_FOR_FIGURE = 1.25  # how much longer an axis is than its longest bar
_ROOM_FOR_FIGURE_LOG = 8
_PADDING = 0.15  # inches


def chart(name: str) -> str:
    """Draw the chart of this name."""
    told = CHARTS[name]
    size = (_WIDTH, _AROUND + _BAR * len(told["bars"]))
    with rc_context({"svg.hashsalt": "dataporter"}):  # the same file each time
        return svg(partial(_draw, told), size).decode()


def length(figure: str) -> float:
    """The number at the beginning of a figure, such as 3522 in "3,522 ms"."""
    return float(re.match(r"[\d,.]+", figure)[0].replace(",", ""))  # type: ignore[index]


def _draw(told: dict[str, Any], figure: Figure, greys: Greys) -> None:
    bars = told["bars"]
    axes = figure.subplots()
    lengths = [length(bar["figure"]) for bar in bars]
    colours = [greys.pale if bar.get("is_other") else COLOURS[2] for bar in bars]
    drawn = axes.barh(range(len(bars)), lengths, color=colours, height=0.7)
    axes.bar_label(drawn, [bar["figure"] for bar in bars], padding=4)
    axes.set_yticks(range(len(bars)), [bar["label"] for bar in bars])
    axes.tick_params(axis="y", length=0, labelcolor=greys.ink)
    axes.invert_yaxis()
    if told.get("is_logarithmic"):
        axes.set_xscale("log")
        axes.set_xlim(min(lengths) / 3, max(lengths) * _ROOM_FOR_FIGURE_LOG)
    else:
        axes.set_xlim(0, max(lengths) * _ROOM_FOR_FIGURE)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    figure.get_layout_engine().set(w_pad=_PADDING, h_pad=_PADDING)
    figure.suptitle(told["title"], x=0.02, ha="left", fontweight="bold")
    figure.supxlabel(told["note"], x=0.02, ha="left", color=greys.soft, fontsize="small")
