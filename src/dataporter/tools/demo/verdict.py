"""What the logs show: the killed and resumed training against the one that was not, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dataporter.tools.demo.runs import Story
from dataporter.tools.demo.steps import Step
from dataporter.tools.demo.training import EPOCHS, STEP_SAMPLES, Run

# Ranks know the same loss; what one of them says is compared with what each of the others says.
ASPECTS: dict[str, Callable[[Step], object]] = {
    "sample ids and epoch": lambda step: (step.epoch, step.ids),
    "augmented images, SHA-256 of bytes": lambda step: step.inputs,
    "losses, every bit, on every rank": lambda step: set(step.losses),
}

HOW = (
    "All of this is compared bit by bit, nothing within a tolerance. Sums of floats would differ "
    "in their last bits where samples are split among other ranks; so the ranks add up each "
    "sample's loss and gradient as whole numbers (of 2^-40), whose sum has no order."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was compared, and how it is."""

    what: str
    words: str
    is_good: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All findings, and what follows."""

    findings: tuple[Finding, ...]

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs."""
        return all(finding.is_good for finding in self.findings)

    @property
    def words(self) -> str:
        """The plain verdict."""
        if self.is_exact:
            return (
                "IDENTICAL: killed, and resumed on other ranks and workers, the training is the "
                "same to the last bit."
            )
        return "DIFFERENT: the resumed training is not the one that was never interrupted."


def judge(story: Story) -> Verdict:
    """Compare every step that was made, and count every sample of every epoch."""
    found = [*story.killed, *story.resumed]
    findings = [
        _counted(aspect, len(found), differing(story.whole, found, aspect)) for aspect in ASPECTS
    ]
    made = {step.step for step in found}
    left_out = [step.step for step in story.whole if step.step not in made]
    findings.append(_finding("steps left out", str(len(left_out)), left_out))
    twice = [step for step in story.resumed if step.step <= story.killed_after]
    changed = sorted(
        {step for aspect in ASPECTS for step in differing(story.killed, twice, aspect)}
    )
    findings.append(_counted("steps lost in the kill, made again", len(twice), changed))
    seen = Counter((step.epoch, sample) for step in kept(story) for sample in step.ids)
    right = sum(seen[epoch, n] == 1 for epoch in range(EPOCHS) for n in range(story.after.samples))
    wanted = EPOCHS * story.after.samples
    words = f"{right} of {wanted}" + (f", {len(seen) - right} not" if len(seen) != right else "")
    findings.append(
        Finding(
            what="samples seen once in each epoch",
            words=words,
            is_good=right == wanted == len(seen),
        )
    )
    findings.append(
        Finding(
            what="weights at the end, SHA-256",
            words="identical" if story.same_weights else "DIFFERENT",
            is_good=story.same_weights,
        )
    )
    return Verdict(findings=tuple(findings))


def kept(story: Story) -> list[Step]:
    """The steps that the weights at the end have learned from."""
    return [*(s for s in story.killed if s.step <= story.resumed_from), *story.resumed]


def differing(expected: Sequence[Step], found: Sequence[Step], aspect: str) -> list[int]:
    """The steps of `found` that are not, in this aspect, what was expected."""
    value = ASPECTS[aspect]
    known = {step.step: value(step) for step in expected}
    return [step.step for step in found if known.get(step.step) != value(step)]


def _counted(what: str, of: int, wrong: list[int]) -> Finding:
    return _finding(what, f"{of - len(wrong)} of {of} identical", wrong)


def _finding(what: str, words: str, wrong: list[int]) -> Finding:
    where = f" (first: step {wrong[0]})" if wrong else ""
    return Finding(what=what, words=words + where, is_good=not wrong)


def topology(run: Run) -> str:
    """How a run is split among processes."""
    workers = "1 worker" if run.workers == 1 else f"{run.workers} workers"
    return f"{run.world_size} ranks with {workers} each, batches of {run.batch_size}"


def waits(story: Story) -> str:
    """How long the resume took."""
    usual = median(step.wait_ms for step in story.whole)
    return (
        f"From load_state_dict() to the first batch, workers started: "
        f"{story.resumed[0].wait_ms:.0f} ms (usual wait for a batch: {usual:.1f} ms)."
    )


def around_the_kill(story: Story) -> str:
    """The steps around the kill in the order they were made, in at most 80 columns."""
    known = {step.step: step for step in story.whole}
    before = [step for step in story.killed if step.step >= story.resumed_from - 1]
    after = [step for step in story.resumed if step.step <= story.killed_after + 2]
    kill = f"{story.after.world_size} new ranks go on from the checkpoint of step"
    kill = f"---- SIGKILL; {kill} {story.resumed_from} ----"
    head = f"{'sample ids':<13}{'image':<7}{'loss':<11}"
    return "\n".join(
        [
            f"     | {'never interrupted':<31} | {'killed, then resumed':<31} | same",
            f"step | {head} | {head} |",
            *(_row(known.get(step.step), step) for step in before),
            kill,
            *(_row(known.get(step.step), step) for step in after),
            f"(ids: the first 2 of {STEP_SAMPLES}; image: start of the first one's SHA-256)",
        ]
    )


def _row(expected: Step | None, found: Step) -> str:
    same = expected is not None and all(of(expected) == of(found) for of in ASPECTS.values())
    return f"{found.step:>4} | {_cells(expected)} | {_cells(found)} | {'yes' if same else 'NO'}"


def _cells(step: Step | None) -> str:
    if step is None:
        return " " * 31
    ids = " ".join(map(str, step.ids[:2])) + " .."
    # Shortened for the eye: compared are all ids, all of the digests and every bit.
    return f"{ids:<13}{step.inputs[0][:6]:<7}{step.loss:<11.9f}"
