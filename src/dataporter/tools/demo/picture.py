"""The demonstration as one picture (PNG): loss curves and sample map. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import io

from dataporter.errors import MissingExtraError
from dataporter.tools import pages
from dataporter.tools.demo.runs import Story
from dataporter.tools.demo.sample_map import SHOWN, sample_map
from dataporter.tools.demo.verdict import Verdict

_PALE = "#b6bec9"


def check_matplotlib() -> None:
    """Raise before minutes of work, not after, if there will be no picture."""
    if importlib.util.find_spec("matplotlib") is None:
        msg = 'matplotlib is not installed. Install it: pip install "torch-dataporter[cli]".'
        raise MissingExtraError(msg)


def picture_of(story: Story, verdict: Verdict) -> bytes:
    """The picture, as the contents of a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  likewise
    from matplotlib.colors import ListedColormap  # noqa: PLC0415  likewise
    from matplotlib.figure import Figure  # noqa: PLC0415  likewise

    found = sample_map(story)
    figure = Figure(figsize=(10, 9), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(verdict.words, fontsize=10.5)
    curves, before, after, dataset = figure.subplots(4, 1, height_ratios=[4, 1.4, 1.4, 3])

    for steps, style in (
        (story.whole, {"color": _PALE, "linewidth": 7, "label": "never interrupted"}),
        (story.killed, {"color": pages.COLOURS[0], "linewidth": 3.5, "label": "until the kill"}),
        (story.resumed, {"color": pages.COLOURS[2], "label": "resumed on other ranks"}),
    ):
        curves.plot([step.step for step in steps], [step.loss for step in steps], **style)
    curves.axvline(story.killed_after, color=pages.COLOURS[0], linestyle="--", linewidth=1)
    curves.axvline(story.resumed_from, color=pages.COLOURS[2], linestyle=":", linewidth=1)
    curves.set(xlabel="step", ylabel="loss", xlim=(1, story.whole[-1].step))
    curves.legend(frameon=False)

    colours = ListedColormap(["#ffffff", *pages.COLOURS[: len(found.who)]])
    for axes, values, title in (
        (
            before,
            found.before[:SHOWN],
            f"epoch {found.epoch + 1} before the kill: steps, and their first {SHOWN} samples",
        ),
        (after, found.after[:SHOWN], "after it, by other ranks"),
        (dataset, found.dataset, "by number in the dataset: who trained on it, for good"),
    ):
        axes.imshow(
            values, colours, vmin=0, vmax=len(found.who), aspect="auto", interpolation="none"
        )
        axes.set_title(title, fontsize=9, loc="left")
        axes.set(xticks=[], yticks=[])
    squares = [
        dataset.plot([], [], "s", color=colour, label=name)[0]
        for name, colour in zip(found.who, pages.COLOURS, strict=False)
    ]
    figure.legend(handles=squares, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=110)
    return written.getvalue()
