"""Tasks: batches to fetch. Sources make them, engines run them, fetchers read their payload.

A payload is `Samples` (by index, for any worker) or a `LaneTurn` (the next batch of a lane, for
the worker that reads that lane).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataporter.fetch.randomness import EpochKeys
from dataporter.law.lane_states import LaneState


class Samples(NamedTuple):
    """Samples by index; each has a position in the epoch, which keys its random numbers."""

    indices: Sequence[Any] | NDArray[np.int64]
    positions: NDArray[np.int64]
    keys: EpochKeys


class Start(NamedTuple):
    """The place where a lane begins to read.

    With a `state`, that is put back, and the batches that follow it are read and dropped.
    Without, a new pass begins over the dataset as the last one left it.
    """

    state: LaneState | None
    seeded_from: int | None  # as in `LaneState`


class LaneTurn(NamedTuple):
    """The next batch of a lane."""

    lane: int
    number: int  # of the batch, in the lane
    start: Start | None  # where to begin first
    captures: bool  # whether the state after the batch is wanted
    keys: EpochKeys
    samples: Samples | None = None  # where the lane's dataset is read by index


Payload: TypeAlias = Samples | LaneTurn


class Task(NamedTuple):
    """One batch to fetch."""

    number: int  # of the batch in its epoch, from 1
    payload: Payload
    place: int | None = None  # tasks of one place are run by one worker, in order

    def __str__(self) -> str:
        return f"batch {self.number} of epoch {self.payload.keys.epoch}"


# Makes the tasks of lost places anew; the second argument says which places are lost.
Renew: TypeAlias = Callable[[Sequence[Task], Callable[[int], bool]], Iterable[Task]]
