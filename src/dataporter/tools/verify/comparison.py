"""Two runs compared, batch by batch or sample by sample, up to the first difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from dataporter.tools.verify.batch_contents import Contents, Difference, difference
from dataporter.tools.verify.runs import Delivered

Samples: TypeAlias = Mapping[tuple[int, int], Contents]  # by epoch and position


def first_unequal_batch(
    expected: Sequence[Delivered], found: Sequence[Delivered]
) -> tuple[int, str] | None:
    """Return how many batches are equal before the first that differs, and how that differs.

    None if all expected batches are there; more of them are no difference.
    """
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if (one.epoch, one.number) != (other.epoch, other.number):
            message = (
                f"expected batch {one.number} of epoch {one.epoch}, found batch {other.number} of "
                f"epoch {other.epoch}"
            )
            return number, message
        differing = difference(one.contents[0], other.contents[0])
        if differing is not None:
            return number, _described(one, differing, differing.sample)
    if len(found) < len(expected):
        missing = expected[len(found)]
        return len(found), f"expected batch {missing.number} of epoch {missing.epoch}, found none"
    return None


def first_unequal_sample(expected: Samples, found: Sequence[Delivered]) -> str | None:
    """Describe the first sample that differs from the one expected at its position."""
    for batch in found:
        positions = batch.positions or ()
        if len(positions) != len(batch.contents):
            return (
                f"epoch {batch.epoch}, batch {batch.number}: expected {len(positions)} samples, "
                f"found {len(batch.contents)}"
            )
        for number, (position, contents) in enumerate(zip(positions, batch.contents, strict=True)):
            known = expected.get((batch.epoch, position))
            differing = None if known is None else difference(known, contents)
            if differing is not None:
                return _described(batch, differing, number)
    return None


def samples_of(run: Sequence[Delivered]) -> Samples:
    """Return the samples of a run by epoch and position."""
    return {
        (batch.epoch, position): contents
        for batch in run
        for position, contents in zip(batch.positions or (), batch.contents, strict=True)
    }


def runs_differ(expected: Sequence[Delivered], found: Sequence[Delivered]) -> bool:
    """Tell whether two runs that should be equal differ anywhere."""
    return len(expected) != len(found) or any(
        difference(one, other) is not None
        for mine, its in zip(expected, found, strict=True)
        for one, other in zip(mine.contents, its.contents, strict=False)
    )


def _described(batch: Delivered, differing: Difference, sample: int | None) -> str:
    where = f"epoch {batch.epoch}, batch {batch.number}"
    if sample is not None:
        where += f", sample {sample}"
        if batch.positions is not None and batch.indices is not None:
            where += f" (position {batch.positions[sample]}, index {batch.indices[sample]})"
    if differing.path:
        where += f", at {differing.path}"
    return f"{where}: {differing.message}"
