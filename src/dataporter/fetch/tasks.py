"""Tasks: batches to fetch. Sources make them, engines run them, fetchers read their payload.

A payload is `Samples` (by index, for any worker) or a `LaneTurn` (the next batch of a lane, for
the worker that reads that lane).
"""

from __future__ import annotations

import reprlib
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


def indices_in_words(indices: Sequence[Any] | NDArray[np.int64]) -> str:
    """Name samples by their indices, in the order of their batch.

    >>> indices_in_words([3, 1])
    'the samples at indices 3, 1'
    """
    plain = (each.item() if isinstance(each, np.generic) else each for each in indices[:_SHOWN])
    shown = ", ".join(map(reprlib.repr, plain))
    more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
    return f"the samples at indices {shown}{more}"


_SHOWN = 64  # indices


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


def payload_in_words(payload: Payload) -> str:
    """Name the samples that are asked for; of an iterable, the lane that they come from."""
    if isinstance(payload, Samples):
        return indices_in_words(payload.indices)
    if payload.samples is not None:
        return indices_in_words(payload.samples.indices)
    return f"the next samples of lane {payload.lane}"


class Task(NamedTuple):
    """One batch to fetch."""

    number: int  # of the batch in its epoch, from 1
    payload: Payload
    place: int | None = None  # tasks of one place are run by one worker, in order

    def __str__(self) -> str:
        return f"batch {self.number} of epoch {self.payload.keys.epoch}"


# Makes the tasks of lost places anew; the second argument says which places are lost.
Renew: TypeAlias = Callable[[Sequence[Task], Callable[[int], bool]], Iterable[Task]]
