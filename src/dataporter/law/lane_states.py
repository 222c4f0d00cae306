"""The progress of each lane of an iterable, as a run keeps it and as a state shows it.

A run keeps the states of datasets and iterators as the bytes that a worker made of them:
bytes do not change when the dataset goes on, and nobody pays for reading what nobody asks
for. `state_dict()` makes objects of them, new ones at every call.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

from dataporter.errors import StateFormatError


class LaneState(NamedTuple):
    """The progress of one lane. A tuple, since one is made for every batch, as of `Lanes`.

    `dataset` and `iterator` are their states as of the lane's batch number `at`, None where
    they have none. What lies between `at` and `batches` is read again at a resume.

    `seeded_from` is the first batch whose random numbers are seeded by its own number; None as
    long as the lane has drawn nothing. It is 0 in runs whose states do not say it.
    """

    batches: int = 0
    ended: bool = False
    at: int = 0
    dataset: bytes | None = None
    iterator: bytes | None = None
    seeded_from: int | None = None

    @property
    def is_at_start(self) -> bool:
        """True if no pass over the lane has begun."""
        return self.batches == 0 and not self.ended and self.iterator is None


class Lanes(NamedTuple):
    """All lanes of a run: how many, those of this rank, and which one was delivered last.

    `has_worker_info` is for the only lane of an iterable: True if `get_worker_info()` tells it that
    it is worker 0 of 1, False if it is None there. It is None where a state does not say so: then a
    worker process decides, as in torch. Several lanes are always told.
    """

    count: int  # type: ignore[assignment]  # a tuple's method of this name is not needed
    each: Mapping[int, LaneState]
    last: int = -1
    has_worker_info: bool | None = None

    @property
    def are_at_start(self) -> bool:
        """True if no pass over any of them has begun."""
        return all(lane.is_at_start for lane in self.each.values())

    def with_lane(self, lane: int, state: LaneState) -> Lanes:
        """Say that a lane was delivered up to `state`."""
        return Lanes(self.count, {**self.each, lane: state}, lane, self.has_worker_info)

    def afresh(self, datasets: Mapping[int, bytes | None]) -> Lanes:
        """Begin an epoch, in which these datasets go on from their states."""
        each = {
            lane: LaneState(
                dataset=datasets.get(lane), seeded_from=0 if state.seeded_from == 0 else None
            )
            for lane, state in self.each.items()
        }
        return self._replace(last=-1, each=each)


def pack(state: Any) -> bytes:
    """Make bytes of what somebody's `state_dict()` returned."""
    return pickle.dumps(state, 5)


def lanes_to_state(lanes: Lanes) -> dict[str, Any]:
    """Lay lanes out for users: builtins, and what their datasets return."""
    shown: dict[str, Any] = {
        "count": lanes.count,
        "last": lanes.last,
        "each": {str(lane): _lane_to_state(state) for lane, state in lanes.each.items()},
    }
    if lanes.has_worker_info is not None:
        shown["has_worker_info"] = lanes.has_worker_info
    return shown


def _lane_to_state(lane: LaneState) -> dict[str, Any]:
    names = ("batches", "ended", "at", "seeded_from")
    shown: dict[str, Any] = {name: getattr(lane, name) for name in names}
    for name, packed in (("dataset", lane.dataset), ("iterator", lane.iterator)):
        if packed is not None:
            shown[name] = pickle.loads(packed)  # noqa: S301  made by `pack`
    return shown


def lanes_from_state(found: Any) -> Lanes:
    """Read what `lanes_to_state` laid out, or say what is wrong with it."""
    try:
        each = {int(lane): _lane_from_state(state) for lane, state in found["each"].items()}
        lanes = Lanes(
            count=int(found["count"]),
            last=int(found["last"]),
            each=each,
            has_worker_info=found.get("has_worker_info"),
        )
        _check(lanes)
    except (KeyError, TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        msg = (
            f"the state's 'lanes' cannot be read: {type(error).__name__}: {error}. "
            "It was changed or damaged after state_dict() returned it."
        )
        raise StateFormatError(msg) from error
    return lanes


def _check(lanes: Lanes) -> None:
    found = sorted(lanes.each)  # none on a rank of more ranks than lanes
    inside = all(0 <= lane < lanes.count for lane in found)
    if lanes.count < 1 or not inside or not -1 <= lanes.last < lanes.count:
        msg = f"of {lanes.count} lanes it has {found}, and {lanes.last} as the last one"
        raise ValueError(msg)
    if lanes.has_worker_info not in (None, False, True):
        msg = f"has_worker_info is {lanes.has_worker_info!r}"
        raise TypeError(msg)
    for lane, state in lanes.each.items():
        if not 0 <= state.at <= state.batches:
            msg = f"lane {lane} was delivered up to {state.batches}, with a state of {state.at}"
            raise ValueError(msg)
        if state.seeded_from is not None and state.seeded_from < 0:
            msg = f"lane {lane} is seeded from batch {state.seeded_from} on"
            raise ValueError(msg)
        if state.at and state.dataset is None and state.iterator is None:
            msg = (
                f"lane {lane} had a state of its dataset at batch {state.at}, which is not there "
                "(under torch.distributed.checkpoint, wrap the loader in WholeState of "
                "dataporter.trainers.distributed_checkpoint)"
            )
            raise ValueError(msg)


def _lane_from_state(found: Mapping[str, Any]) -> LaneState:
    parts = {name: pack(found[name]) for name in ("dataset", "iterator") if name in found}
    # Before states said it, every batch was seeded by its number.
    seeded_from = found.get("seeded_from", 0)
    return LaneState(
        batches=int(found["batches"]),
        ended=bool(found["ended"]),
        at=int(found["at"]),
        seeded_from=None if seeded_from is None else int(seeded_from),
        **parts,
    )
