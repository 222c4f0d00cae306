"""A plan as a file: a picture, or a page with the table beside the pictures."""

from __future__ import annotations

from functools import partial

from dataporter.tools.pages import render
from dataporter.tools.pages.pictures import picture, png, svg
from dataporter.tools.plan import pictures
from dataporter.tools.plan.figures import PlanFigures
from dataporter.tools.plan.report import rows_of, time_in_words, warnings_of
from dataporter.tools.profile.units import size

_SIZE = (1000, 900)  # pixels
_SIZE_WITHOUT_CACHE = (1000, 600)


def drawn(figures: PlanFigures, suffix: str) -> str | bytes:
    """Draw a plan as the contents of a file .svg, .png or .html."""
    if suffix == ".html":
        return page_of(figures)
    draw = partial(pictures.draw_all, figures)
    pixels = _SIZE if figures.needs_cache else _SIZE_WITHOUT_CACHE
    return png(draw, pixels) if suffix == ".png" else svg(draw, pixels)


def page_of(figures: PlanFigures) -> str:
    """Render the page."""
    drawings = [("in-use", pictures.draw_in_use), ("nodes", pictures.draw_nodes)]
    if figures.needs_cache:
        drawings.append(("cache", pictures.draw_cache))
    return render(
        "plan",
        root=figures.root,
        cards=_cards(figures),
        rows=rows_of(figures),
        warnings=warnings_of(figures),
        pictures=[picture(name, partial(draw, figures), 280) for name, draw in drawings],
    )


def _cards(figures: PlanFigures) -> list[tuple[str, str]]:
    return [
        (f"{figures.fresh.reads_per_block:.2f}", "nodes that read a block"),
        (size(figures.fresh.bytes_per_node), "fetched by a node in an epoch"),
        (size(figures.in_use.bytes_most), "in use on a node"),
        (time_in_words(figures.first_batch.seconds), "to the first batch"),
        (time_in_words(figures.fresh.seconds), "to fetch an epoch"),
    ]
