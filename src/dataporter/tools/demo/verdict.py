"""The comparison of the killed and resumed training with the uninterrupted one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from dataporter.tools.demo.runs import Story, seen_with_torch
from dataporter.tools.demo.steps import Step
from dataporter.tools.demo.training import EPOCHS, Run

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
    workers = "1 worker" if run.workers == 1 else f"{run.workers} workers"
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
