"""Who saw what, in the epoch of the kill: each sample by its place in the epoch and the dataset.

Maps are arrays of small numbers, one for each sample: which rank of which run it came to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataporter.tools.demo.runs import Story
from dataporter.tools.demo.steps import Step
from dataporter.tools.demo.verdict import kept

NOBODY = 0
COLUMNS = 64  # of the dataset's map
SHOWN = 12  # samples of a step: the others are dealt in the same way

Map = NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMap:
    """Each value is a number of `who`, or NOBODY."""

    epoch: int
    who: tuple[str, ...]  # value 1, 2, ...: first the ranks before the kill, then those after
    before: Map  # (samples of a step, steps of the epoch), as the killed run saw them
    after: Map  # likewise, the resumed run
    dataset: Map  # (rows, COLUMNS), by number in the dataset, steps lost in the kill left out
    lost: int  # so many of the steps before the kill


def sample_map(story: Story) -> SampleMap:
    """Draw the maps of the epoch in which the kill was."""
    epoch = story.killed[-1].epoch
    ranks = story.before.world_size
    killed, resumed = (
        [step for step in steps if step.epoch == epoch] for steps in (story.killed, story.resumed)
    )
    dataset = np.full(-(-story.after.samples // COLUMNS) * COLUMNS, NOBODY, np.int8)
    for step in (step for step in kept(story) if step.epoch == epoch):
        first, world_size = _share(story, step)
        dataset[list(step.ids)] = first + np.arange(len(step.ids)) % world_size
    return SampleMap(
        epoch=epoch,
        who=(
            *(f"rank {rank} before the kill" for rank in range(ranks)),
            *(f"rank {rank} after it" for rank in range(story.after.world_size)),
        ),
        before=_by_step(story, killed, 1, ranks),
        after=_by_step(story, resumed, 1 + ranks, story.after.world_size),
        dataset=dataset.reshape(-1, COLUMNS),
        lost=story.killed_after - story.resumed_from,
    )


def _share(story: Story, step: Step) -> tuple[int, int]:
    """The value of the first of the ranks that made a step that counts, and their number."""
    if step.step <= story.resumed_from:
        return 1, story.before.world_size
    return 1 + story.before.world_size, story.after.world_size


def _by_step(story: Story, steps: Iterable[Step], first: int, world_size: int) -> Map:
    per_epoch = story.before.steps_per_epoch
    size = len(story.whole[0].ids)
    drawn = np.full((size, per_epoch), NOBODY, np.int8)
    for step in steps:
        drawn[:, (step.step - 1) % per_epoch] = first + np.arange(size) % world_size
    return drawn
