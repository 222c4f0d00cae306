"""The demo as one HTML file and as a picture."""

from __future__ import annotations

from functools import partial

from dataporter.tools.demo import pictures
from dataporter.tools.demo.runs import Story
from dataporter.tools.demo.training import EPOCHS
from dataporter.tools.demo.verdict import (
    HOW,
    Verdict,
    beside_torch,
    topology,
    waits,
)
from dataporter.tools.pages import render
from dataporter.tools.pages.pictures import picture, png


def page_of(story: Story, verdict: Verdict) -> str:
    """Render the page."""
    return render(
        "demo",
        story=story,
        verdict=verdict,
        epochs=EPOCHS,
        before=topology(story.before),
        after=topology(story.after),
        torch=beside_torch(story),
        curves=picture("curves", partial(pictures.draw_curves, story), 360),
        samples=picture("samples", partial(pictures.draw_samples, story), 520),
        lost=story.killed_after - story.resumed_from,
        how=HOW,
        waits=waits(story),
    )


def picture_of(story: Story, verdict: Verdict) -> bytes:
    """Draw everything in one PNG file."""
    return png(partial(pictures.draw_all, story, verdict), (1000, 1000))
