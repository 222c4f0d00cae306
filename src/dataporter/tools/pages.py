"""Pages to open in a browser: one file each, no script, no network, light and dark.

Figures are SVG stretched to the width there is, so that words, which stand beside them as HTML,
keep their size on a phone and on a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#d55e00", "#e69f00", "#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#f0e442")

_MOST_PARTS = 6.5  # of an axis

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #fff;
  --card: #f6f8fa; --line: #d1d9e0; --pale: #b6bec9; --good: #00664a; --bad: #a13d00;
  --cool: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecf0; --soft: #9aa5b1; --paper: #14181d;
  --card: #1d232a; --line: #353d47; --pale: #5a6572; --good: #3cc59a; --bad: #ff9a57;
  --cool: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(.8rem, 3vw, 3rem) 3rem; max-width: 90rem;
  background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: clamp(1.25rem, 3.2vw, 1.9rem); line-height: 1.25; margin: .2rem 0 .8rem; }
h1.good { color: var(--good); } h1.bad { color: var(--bad); }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: .9rem; font-weight: 500; margin: .9rem 0 .3rem; }
p { margin: .4rem 0; max-width: 60rem; } .soft, figcaption, th { color: var(--soft); }
figure { margin: 0; } figcaption { font-size: .88rem; margin-top: .5rem; max-width: 60rem; }
.plot { display: grid; grid-template-columns: 3.6rem minmax(0, 1fr); }
.plot span { white-space: nowrap; }
.plot .up, .plot .along { position: relative; font-size: .78rem; line-height: 1;
  color: var(--soft); font-variant-numeric: tabular-nums; }
.plot .along { grid-column: 2; height: 1.4em; }
.plot .up span, .plot .along span { position: absolute; }
.plot .up span { right: .5rem; top: calc(var(--at) * 100%); transform: translateY(-50%); }
.plot .along span { left: calc(var(--at) * 100%); top: .4em;
  transform: translateX(calc(var(--at) * -100%)); }
.plot svg, svg.map { display: block; width: 100%; background: var(--card); border-radius: 3px; }
.plot svg { height: clamp(12rem, 30vw, 22rem); }
svg.map { margin-bottom: .3rem; }
svg path, svg line { vector-effect: non-scaling-stroke; fill: none; }
svg.map path { stroke: none; }
.keys { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; margin: .5rem 0; }
.keys i { display: inline-block; width: .85em; height: .85em; border-radius: 2px;
  margin-right: .35em; vertical-align: -.05em; }
.bars { display: grid; grid-template-columns: minmax(5.5rem, max-content) minmax(0, 1fr);
  gap: 3px .7rem; font-size: .85rem; align-items: center; }
.bars div { display: flex; align-items: center; gap: .5rem; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.bars b { font-weight: 500; }
.bars div i { width: calc(var(--share) * (100% - 10.5rem)); height: 1rem; border-radius: 2px;
  min-width: 2px; flex: none; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem;
  font-variant-numeric: tabular-nums; min-width: min(100%, 30rem); }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line);
  font-weight: 400; } th:first-child, td:first-child { text-align: left; }
td.bad { color: var(--bad); font-weight: 600; }
pre { overflow-x: auto; background: var(--card); padding: .8rem; border-radius: 6px;
  font-size: .8rem; line-height: 1.45; }
@media (min-width: 75rem) { .two { display: grid; gap: 0 3rem;
  grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); } }
"""


def page(title: str, body: Sequence[str], style: str = "") -> str:
    """A whole page of some parts, with what is to be styled of it beyond the rest."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def section(title: str, *content: str) -> str:
    """A part of a page under a heading."""
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def figure(name: str, content: str, caption: str) -> str:
    """A picture with words below it."""
    return f'<figure id="{name}">{content}<figcaption>{escape(caption)}</figcaption></figure>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], bad: Sequence[bool] = ()) -> str:
    """A table; rows that are bad news stand out."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = []
    for row, is_bad in zip(rows, bad or [False] * len(rows), strict=True):
        mark = ' class="bad"' if is_bad else ""
        lines.append(f"<tr>{''.join(f'<td{mark}>{escape(cell)}</td>' for cell in row)}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{"".join(lines)}</table></div>'
    )


def keys(colours: Mapping[str, str]) -> str:
    """What the colours stand for."""
    spans = (
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in colours.items()
    )
    return f'<div class="keys">{"".join(spans)}</div>'


Ticks = Sequence[tuple[float, str]]  # where on an axis, and what stands there


def plot(shapes: Sequence[str], up: Ticks, along: Ticks, size: tuple[float, float]) -> str:
    """Lay shapes out between two axes, whose ticks are placed as the shapes are."""
    spans = [
        "".join(
            f'<span style="--at:{at / extent:.4f}">{escape(words)}</span>' for at, words in ticks
        )
        for ticks, extent in ((along, size[0]), (up, size[1]))
    ]
    return (
        f'<div class="plot"><div class="up">{spans[1]}</div>{svg("", shapes, size)}'
        f'<div class="along">{spans[0]}</div></div>'
    )


def round_steps(highest: float) -> list[float]:
    """Divide an axis that begins at 0 at round numbers, into six parts or fewer.

    >>> round_steps(1.21), round_steps(47)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2], [0.0, 10.0, 20.0, 30.0, 40.0])
    """
    power = 10.0 ** math.floor(math.log10(highest / _MOST_PARTS))
    step = next(step * power for step in (1, 2, 5, 10) if highest <= _MOST_PARTS * step * power)
    return [float(f"{number * step:.6g}") for number in range(int(highest / step + 1e-9) + 1)]


def line(points: Sequence[tuple[float, float]], style: str) -> str:
    """A line through points."""
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="{path}" style="{style}"/>'


def cells(values: Sequence[Sequence[int]], colours: Sequence[str], name: str, height: int) -> str:
    """A grid of cells in colours; value 0 has none."""
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value:
                paths.setdefault(int(value), []).append(f"M{x} {y}h1v1h-1z")
    shapes = [
        f'<path style="fill:{colours[value - 1]}" d="{"".join(paths[value])}"/>'
        for value in sorted(paths)
    ]
    size = float(len(values[0])), float(len(values))
    return svg(
        f'class="map" style="height:{height}px" role="img" aria-label="{name}"', shapes, size
    )


def bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Bars from the left: what, share of the full width, colour, words at the end."""
    drawn = (
        f'<b>{escape(what)}</b><div><i style="--share:{share:.4f};background:{colour}"></i>'
        f"{escape(words)}</div>"
        for what, share, colour, words in rows
    )
    return f'<div class="bars">{"".join(drawn)}</div>'


def svg(attributes: str, shapes: Sequence[str], size: tuple[float, float]) -> str:
    """A picture of some shapes that stretches to the width it is given."""
    box = f'viewBox="0 0 {size[0]:g} {size[1]:g}" preserveAspectRatio="none"'
    return f"<svg {attributes} {box}>{''.join(shapes)}</svg>"
