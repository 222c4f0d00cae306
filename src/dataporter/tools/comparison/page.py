"""A comparison as one HTML file: bars of speeds, lines of resumes, tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from dataporter.tools import pages
from dataporter.tools.comparison.measure import count
from dataporter.tools.comparison.racing import Race
from dataporter.tools.comparison.report import (
    NOTE,
    Comparison,
    ratio_words,
    resume_words,
    speed_words,
)
from dataporter.tools.comparison.resuming import SWEPT, Resumed

COLOURS = {
    "torch": pages.COLOURS[0],
    "torchdata": pages.COLOURS[1],
    "grain": pages.COLOURS[4],
    "spdl": pages.COLOURS[5],
    "dataporter": pages.COLOURS[2],
}


def page_of(found: Comparison) -> str:
    """The whole page."""
    versions = ", ".join(f"{who} {version}" for who, version in found.versions.items())
    colours = {who: COLOURS[who] for who in found.versions}
    middles = [each for each in found.resumes if each.position == each.samples // 2]
    along = [each for each in found.resumes if each.samples == SWEPT]
    races = "".join(f"<h3>{escape(race.workload)}</h3>{_bars(race)}" for race in found.races)
    return pages.page(
        "dataporter bench",
        [
            f'<p class="soft">dataporter bench · {escape(versions)} · {found.seconds:.0f} s</p>',
            "<h1>Loaders compared on the same work, in turns</h1>",
            f"<p class=soft>{escape(found.machine)}</p>",
            pages.section(
                "Delivery: samples a second, and to torch",
                pages.keys(colours) + pages.figure("delivery", races, NOTE),
            ),
            '<div class="two">',
            pages.section(
                "From state to first correct batch, by size",
                _lines("by-size", _SIZES, middles),
            ),
            pages.section(
                f"The same by position, in {count(SWEPT)} samples",
                _lines("by-position", _POSITIONS, along),
            ),
            "</div>",
            pages.section("All resumes", _table(found)),
        ],
    )


def _bars(race: Race) -> str:
    speeds = {who: race.speed(who) for who in COLOURS if who in race.times or who in race.failed}
    fastest = max((speed for speed in speeds.values() if speed), default=1.0)
    return pages.bars(
        [
            (
                who,
                (speed or 0) / fastest,
                COLOURS[who],
                f"{speed_words(race, who)} · {ratio_words(race, who)}" if speed else "failed",
            )
            for who, speed in speeds.items()
        ]
    )


class _Axis(NamedTuple):
    """What resumes are shown by: its name, its value for each, where that stands, in words."""

    name: str
    value: Callable[[Resumed], int]
    scale: Callable[[int], float]
    words: Callable[[int], str]


_SIZES = _Axis("samples, in powers of ten", lambda each: each.samples, math.log10, count)
_POSITIONS = _Axis("position", lambda each: each.position, float, "{:,}".format)


def _lines(name: str, axis: _Axis, found: Sequence[Resumed]) -> str:
    """Times of resumes in powers of ten, along an axis."""
    places = sorted({axis.value(each) for each in found})
    columns = {place: axis.scale(place) - axis.scale(places[0]) for place in places}
    times = {
        who: [
            (columns[axis.value(each)], math.log10(statistics.median(each.seconds) * 1e3))
            for each in sorted(found, key=axis.value)
            if each.who == who and each.seconds
        ]
        for who in COLOURS
    }
    heights = [height for points in times.values() for _, height in points] or [0.0]
    low, high = math.floor(min(heights)), math.ceil(max(heights) + 0.01)
    width = max(columns.values(), default=0.0) or 1.0
    shapes = [
        pages.line([(0, level), (width, level)], "stroke:var(--line);stroke-width:1")
        for level in range(high - low)
    ]
    for who, points in times.items():
        if points:
            placed = [(x, high - y) for x, y in points]
            if len(placed) == 1:  # which would not be seen
                placed.append((placed[0][0] + width / 99, placed[0][1]))
            style = f"stroke:{COLOURS[who]};stroke-width:3;stroke-linecap:round"
            shapes.append(pages.line(placed, style))
    up = [(high - level, _time(10.0**level)) for level in range(low, high + 1)]
    ticks = [(columns[place], axis.words(place)) for place in places]
    drawn = pages.plot(shapes, up, ticks, (width, high - low))
    shown = {who: COLOURS[who] for who, points in times.items() if points}
    caption = (
        f"From left to right: {axis.name}. Upwards: time, each line ten times the one below. "
        "Where a line ends, the loader was not run: see the table."
    )
    return pages.keys(shown) + pages.figure(name, drawn, caption)


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:g} s" if milliseconds >= 1e3 else f"{milliseconds:g} ms"  # noqa: PLR2004


def _table(found: Comparison) -> str:
    rows = [
        (each.who, count(each.samples), f"{each.position:,}", resume_words(each))
        for each in sorted(found.resumes, key=lambda each: (each.samples, each.position))
    ]
    return pages.table(("loader", "samples", "position", "time, memory"), rows)
