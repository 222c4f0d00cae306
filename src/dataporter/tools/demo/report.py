"""The demo's verdict: the resumed training compared with the uninterrupted one, and shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.layout import counted
from dataporter.tools import report
from dataporter.tools.demo.runs import Story, seen_with_torch
from dataporter.tools.demo.training import EPOCHS, Run, Step
from dataporter.tools.pictures import COLOURS, Greys, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOBODY = 0
_COLUMNS = 64
_TIMES = {"seen once": COLOURS[2], "seen twice": COLOURS[0]}

Map = NDArray[np.int8]  # one value for each sample of the dataset; shape (rows, _COLUMNS)


# All ranks must know the same loss.
ASPECTS: dict[str, Callable[[Step], object]] = {
    "sample ids and epoch": lambda step: (step.epoch, step.ids),
    "augmented images, SHA-256 of bytes": lambda step: step.inputs,
    "losses, every bit, on every rank": lambda step: set(step.losses),
}

HOW = (
    "Everything is compared bit by bit, without a tolerance. Sums of floats would differ in their "
    "last bits when samples are split among other ranks. So the ranks add the loss and gradient of "
    "each sample as integers (multiples of 2^-40), whose sum does not depend on the order."
)


class Finding(NamedTuple):
    """One comparison and its result."""

    what: str
    result: str
    is_good: bool


class Verdict(NamedTuple):
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def is_exact(self) -> bool:
        """True if nothing differs."""
        return all(finding.is_good for finding in self.findings)

    @property
    def words(self) -> str:
        """One sentence."""
        if self.is_exact:
            return (
                "IDENTICAL: killed, and resumed on other ranks and workers, the training is the "
                "same to the last bit."
            )
        return "DIFFERENT: the resumed training differs from the one that was never interrupted."


def judge(story: Story) -> Verdict:
    """Compare every step, and count every sample of every epoch."""
    made = [*story.killed, *story.resumed]
    numbers = {step.step for step in made}
    left_out = [step.step for step in story.whole if step.step not in numbers]
    again = [step for step in story.resumed if step.step <= story.killed_after]
    changed = {step for aspect in ASPECTS for step in differing(story.killed, again, aspect)}
    seen = Counter((step.epoch, sample) for step in story.kept for sample in step.ids)
    right = sum(seen[epoch, n] == 1 for epoch in range(EPOCHS) for n in range(story.after.samples))
    wanted = EPOCHS * story.after.samples
    wrong = f", {len(seen) - right} wrong" if len(seen) != right else ""
    weights = "identical" if story.same_weights else "DIFFERENT"
    findings = [_counted(each, len(made), differing(story.whole, made, each)) for each in ASPECTS]
    findings += [
        Finding("steps left out", f"{len(left_out)}{_first(left_out)}", not left_out),
        _counted("steps lost in the kill, made again", len(again), sorted(changed)),
        Finding(
            "samples seen once in each epoch",
            f"{right} of {wanted}{wrong}",
            right == wanted == len(seen),
        ),
        Finding("weights at the end, SHA-256", weights, story.same_weights),
    ]
    return Verdict(tuple(findings))


def differing(expected: Sequence[Step], found: Sequence[Step], aspect: str) -> list[int]:
    """Numbers of the found steps that differ from the expected ones in an aspect."""
    value = ASPECTS[aspect]
    known = {step.step: value(step) for step in expected}
    return [step.step for step in found if known.get(step.step) != value(step)]


def _counted(what: str, total: int, wrong: list[int]) -> Finding:
    return Finding(what, f"{total - len(wrong)} of {total} identical{_first(wrong)}", not wrong)


def _first(wrong: list[int]) -> str:
    return f" (first: step {wrong[0]})" if wrong else ""


def topology(run: Run) -> str:
    """Describe how a run is split among processes."""
    workers = counted(run.workers, "worker")
    return f"{run.world_size} ranks with {workers} each, batches of {run.batch_size}"


def waits(story: Story) -> str:
    """Say how long the resume took."""
    usual = median(step.wait_ms for step in story.whole)
    return (
        f"From load_state_dict() to the first batch, including the start of workers: "
        f"{story.resumed[0].wait_ms:.0f} ms (usual wait for a batch: {usual:.1f} ms)."
    )


def beside_torch(story: Story) -> str:
    """Say what torch's DataLoader would have done after the same kill."""
    twice = sum(count > 1 for count in seen_with_torch(story).values())
    return (
        f"torch's DataLoader has no state and begins epoch {story.epoch + 1} again: {twice} of "
        f"{story.after.samples} samples are seen twice. With dataporter, each is seen once."
    )


def parts_of(story: Story, verdict: Verdict) -> list[report.Part]:
    """Return what the command shows at its end."""
    losses = f"loss {story.whole[0].loss:.2f} -> {story.whole[-1].loss:.2f}"
    kill = f"SIGKILL to all after step {story.killed_after}, in epoch {story.epoch + 1}"
    runs = [
        f"1. uninterrupted: {topology(story.before)}, {losses}",
        f"2. killed: {kill}",
        f"3. resumed: {topology(story.after)}, from the checkpoint of step {story.resumed_from}",
    ]
    rows = [(finding.what, finding.result) for finding in verdict.findings]
    styles: dict[int, report.Style] = {
        number: "bad" for number, finding in enumerate(verdict.findings) if not finding.is_good
    }
    columns = ("compared with the uninterrupted run", "")
    return [
        report.Words(runs),
        *_pictures(story),
        report.Table(columns, rows, "Compared", ends_with_text=True, styles=styles),
        report.Words([beside_torch(story), HOW, waits(story)], "soft"),
        report.Headline(verdict.words, "good" if verdict.is_exact else "bad"),
    ]


def page_of(story: Story, verdict: Verdict) -> str:
    """Return the demo as one HTML file."""
    *parts, headline = parts_of(story, verdict)
    about = (
        f"A small network learned to tell drawings apart, for {EPOCHS} epochs of "
        f"{story.before.samples} drawings. Each drawing is shifted, mirrored and noised at random "
        "whenever it is read. One run was never interrupted; another was killed and resumed. This "
        f"took {story.seconds:.0f} s, with seed {story.seed}."
    )
    return report.as_page("demo", "dataporter demo", [headline, report.Words([about]), *parts])


def picture_of(story: Story, verdict: Verdict) -> bytes:
    """Draw everything in one PNG file."""

    def draw(figure: Figure, greys: Greys) -> None:
        figure.suptitle(verdict.words)
        curves, *maps = figure.subplots(3)
        _curves(curves, story, greys)
        _maps(maps, story)

    return png(draw, (1000, 1000))


def _pictures(story: Story) -> list[report.Picture]:
    lost = story.killed_after - story.resumed_from
    return [
        report.Picture(
            "curves",
            lambda figure, greys: _curves(figure.subplots(), story, greys),
            360,
            "Loss by step",
            "The lines lie on top of each other where the losses are the same. Dashed: the kill. "
            "Dotted: the checkpoint from which the other ranks continued.",
        ),
        report.Picture(
            "samples",
            lambda figure, _greys: _maps(figure.subplots(2), story),
            520,
            f"All samples in epoch {story.epoch + 1}, the epoch of the kill",
            "Each cell is a sample of the dataset; a blank one would be a sample that no rank saw. "
            f"The last {lost} steps before the kill were lost, since no checkpoint had them; their "
            "samples came again after it, on other ranks. torch's DataLoader has no state and "
            "begins the epoch again.",
        ),
    ]


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
