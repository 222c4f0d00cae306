"""Two runs compared, batch by batch or sample by sample: the first difference, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from dataporter.tools.verify.contents import Contents, Difference, difference
from dataporter.tools.verify.playing import Delivered

Samples: TypeAlias = Mapping[tuple[int, int], Contents]  # by epoch and position


def unequal_batches(
    expected: Sequence[Delivered], found: Sequence[Delivered]
) -> tuple[int, str] | None:
    """Say after how many batches a run differs first from all that is expected of it, and how.

    None where it does not; that it has more is no difference.
    """
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if (one.epoch, one.number) != (other.epoch, other.number):
            words = (
                f"expected batch {one.number} of epoch {one.epoch}, found batch {other.number} of "
                f"epoch {other.epoch}"
            )
            return number, words
        differing = difference(one.contents[0], other.contents[0])
        if differing is not None:
            return number, _words(one, differing, differing.sample)
    if len(found) < len(expected):
        missing = expected[len(found)]
        return len(found), f"expected batch {missing.number} of epoch {missing.epoch}, found none"
    return None


def unequal_samples(expected: Samples, found: Sequence[Delivered]) -> str | None:
    """Say which sample of a run is not what stands at its position; None where all are."""
    for batch in found:
        positions = batch.positions or ()
        if len(positions) != len(batch.contents):
            return (
                f"epoch {batch.epoch}, batch {batch.number}: expected {len(positions)} samples, "
                f"found {len(batch.contents)}"
            )
        for number, (position, held) in enumerate(zip(positions, batch.contents, strict=True)):
            at = expected.get((batch.epoch, position))
            differing = None if at is None else difference(at, held)
            if differing is not None:
                return _words(batch, differing, number)
    return None


def samples_of(run: Sequence[Delivered]) -> Samples:
    """The samples of a run by epoch and position."""
    return {
        (batch.epoch, position): held
        for batch in run
        for position, held in zip(batch.positions or (), batch.contents, strict=True)
    }


def _words(batch: Delivered, differing: Difference, sample: int | None) -> str:
    where = f"epoch {batch.epoch}, batch {batch.number}"
    if sample is not None:
        where += f", sample {sample}"
        if batch.positions is not None and batch.indices is not None:
            where += f" (position {batch.positions[sample]}, index {batch.indices[sample]})"
    if differing.path:
        where += f", at {differing.path}"
    return f"{where}: {differing.words}"
