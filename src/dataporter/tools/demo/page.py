"""The demonstration as one HTML file: verdict, loss curves, sample map, tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dataporter.tools import pages
from dataporter.tools.demo.runs import Story
from dataporter.tools.demo.sample_map import SHOWN, sample_map
from dataporter.tools.demo.steps import Step
from dataporter.tools.demo.training import EPOCHS
from dataporter.tools.demo.verdict import (
    HOW,
    Verdict,
    around_the_kill,
    topology,
    waits,
)

WHOLE, KILLED, RESUMED = "var(--pale)", pages.COLOURS[0], "var(--cool)"


def page_of(story: Story, verdict: Verdict) -> str:
    """The whole page."""
    mark = "good" if verdict.is_exact else "bad"
    return pages.page(
        "dataporter demo",
        [
            f'<p class="soft">dataporter demo · seed {story.seed} · {story.seconds:.0f} s</p>',
            f'<h1 class="{mark}">{escape(verdict.words)}</h1>',
            _what_was_done(story),
            pages.section("Loss, step by step", _curves(story)),
            pages.section(f"Who saw what in epoch {story.killed[-1].epoch + 1}", _map(story)),
            '<div class="two">',
            pages.section("Compared", _findings(verdict), f"<p class=soft>{escape(HOW)}</p>"),
            pages.section(
                "Steps around the kill",
                f"<pre>{escape(around_the_kill(story))}</pre>",
                f"<p class=soft>{escape(waits(story))}</p>",
            ),
            "</div>",
        ],
    )


def _what_was_done(story: Story) -> str:
    words = (
        f"A small network learned to tell drawings apart, for {EPOCHS} epochs of "
        f"{story.before.samples} drawings, each shifted, mirrored and noised at random at every "
        f"reading. Once it ran to its end. Once it was killed by SIGKILL after step "
        f"{story.killed_after}, on {topology(story.before)}, and resumed from the checkpoint of "
        f"step {story.resumed_from}, on {topology(story.after)}."
    )
    return f"<p>{escape(words)}</p>"


def _findings(verdict: Verdict) -> str:
    rows = [(finding.what, finding.words) for finding in verdict.findings]
    return pages.table(("", "found"), rows, [not finding.is_good for finding in verdict.findings])


def _curves(story: Story) -> str:
    height = 1.1 * max(step.loss for step in story.whole)
    last = story.whole[-1].step

    def curve(steps: Sequence[Step], style: str) -> str:
        return pages.line([(step.step, height - step.loss) for step in steps], style)

    def upright(at: int, style: str) -> str:
        return pages.line([(at, 0), (at, height)], f"stroke-width:1.2;{style}")

    shapes = [
        upright(story.resumed_from, f"stroke:{RESUMED};stroke-dasharray:3 4"),
        upright(story.killed_after, f"stroke:{KILLED};stroke-dasharray:7 4"),
        curve(story.whole, f"stroke:{WHOLE};stroke-width:9;stroke-linejoin:round"),
        curve(story.killed, f"stroke:{KILLED};stroke-width:4.5"),
        curve(story.resumed, f"stroke:{RESUMED};stroke-width:2"),
    ]
    up = [(height - loss, f"{loss:g}") for loss in pages.round_steps(height)]
    along = [(step, f"{step:g}" if step else "step") for step in pages.round_steps(last)]
    colours = {
        "never interrupted (wide)": WHOLE,
        f"until the kill after step {story.killed_after}": KILLED,
        f"resumed after step {story.resumed_from}": RESUMED,
    }
    drawn = pages.keys(colours) + pages.plot(shapes, up, along, (last, height))
    caption = (
        "The lines lie on top of each other where the losses are the same. Dashed: the kill; "
        "dotted: the checkpoint from which the other ranks went on."
    )
    return pages.figure("curves", drawn, caption)


def _map(story: Story) -> str:
    found = sample_map(story)
    colours = dict(zip(found.who, pages.COLOURS, strict=False))
    parts = (
        (
            f"A column a step, {SHOWN} of its samples, in the order of the epoch: before the kill",
            found.before[:SHOWN],
            110,
            "before",
        ),
        ("after it, by other ranks", found.after[:SHOWN], 110, "after"),
        ("By number in the dataset: who trained on it, for good", found.dataset, 260, "dataset"),
    )
    drawn = pages.keys(colours) + "".join(
        f"<h3>{title}</h3>{pages.cells(values.tolist(), pages.COLOURS, name, height)}"
        for title, values, height, name in parts
    )
    caption = (
        f"The last {found.lost} steps before the kill were lost with it, being in no checkpoint: "
        "their samples come again after it, dealt to other ranks, to be learned from once. A cell "
        "of the last picture without a colour would be a sample that nobody saw."
    )
    return pages.figure("samples", drawn, caption)
