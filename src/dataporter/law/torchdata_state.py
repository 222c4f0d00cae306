"""States that torchdata's StatefulDataLoader has saved, in dataporter's terms.

As versions 0.10 and 0.11 of it write them: one form without workers, one with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dataporter.errors import StateFormatError
from dataporter.law.lane_states import Lanes, LaneState, pack


class TorchdataState(NamedTuple):
    """The contents of a state of torchdata."""

    steps: int  # batches delivered when the states below were taken
    steps_since: int  # and since
    samples: int | None  # drawn from the sampler at that time, None where that was not counted
    finished: bool
    has_workers: bool
    generator: Any  # of torchdata's RandomSampler at the start of the epoch, None without
    sampler: Any  # the state of a sampler of the user's own, None without
    iterator: Any  # the state of that sampler's iterator, None without
    lanes: Lanes | None  # of an iterable, or a dataset with a state


def is_torchdata_state(state: object) -> bool:
    """Return True if torchdata has saved this."""
    return isinstance(state, Mapping) and bool({"_snapshot", "_num_yielded"} & state.keys())


def read_torchdata_state(state: Mapping[str, Any]) -> TorchdataState:
    """Read a state of torchdata."""
    try:
        return _read(state)
    except (KeyError, TypeError, AttributeError) as error:
        msg = (
            f"this looks like a state of torchdata's StatefulDataLoader, but cannot be read: "
            f"{type(error).__name__}: {error}. Those of torchdata 0.10 and 0.11 are known."
        )
        raise StateFormatError(msg) from error


def _read(state: Mapping[str, Any]) -> TorchdataState:
    steps_since = 0
    if "_snapshot" in state:
        snapshot, steps_since = state["_snapshot"], state["_steps_since_snapshot"]
        main, step = snapshot["_main_snapshot"], snapshot["_snapshot_step"]
        workers = [
            snapshot["_worker_snapshots"][f"worker_{n}"] for n in range(main["_num_workers"])
        ]
        last = snapshot["_last_yielded_worker_id"]
    else:
        main, step, workers, last = state, state["_num_yielded"], [state], 0
    finished, has_workers = state["_iterator_finished"], "_snapshot" in state
    iterator, sampler, samples = main["_sampler_iter_state"], main["_index_sampler_state"], None
    if _has(iterator, "samples_yielded"):  # torchdata's BatchSampler, and what is in it
        sampler, samples = iterator.get("sampler_state"), iterator["samples_yielded"]
        iterator = iterator.get("sampler_iter_state")
    lanes = _lanes(workers, step, last, begin_anew=finished and has_workers)
    if lanes is not None and not finished and lanes.are_at_start:
        step, steps_since = 0, step + steps_since
    generator = None
    if _has(iterator, "generator", "yielded"):  # torchdata's RandomSampler
        generator, samples = iterator["generator"], iterator["yielded"]
        iterator = None
    return TorchdataState(
        steps=step,
        steps_since=steps_since,
        samples=samples,
        finished=finished,
        has_workers=has_workers,
        generator=generator,
        sampler=sampler,
        iterator=iterator,
        lanes=lanes,
    )


def _has(state: Any, *names: str) -> bool:
    return isinstance(state, Mapping) and all(name in state for name in names)


def _lanes(
    workers: list[Mapping[str, Any]], step: int, last: int, *, begin_anew: bool
) -> Lanes | None:
    """The workers' streams as lanes; None where there is nothing to keep of them.

    States of workers are as of before the end of an epoch, and new workers begin the next one. If
    streams without a state have ended, nothing says how far each had come: all are at their start.
    """
    count = len(workers)
    iterable = workers[0]["fetcher_state"] is not None
    if not iterable and all(worker["dataset_state"] is None for worker in workers):
        return None
    if begin_anew:
        return Lanes(count=count, each=dict.fromkeys(range(count), LaneState(ended=True)))
    each = {lane: _lane(worker, -(-(step - lane) // count)) for lane, worker in enumerate(workers)}
    some_ended = any(lane.ended for lane in each.values()) and count > 1
    if some_ended and any(lane.dataset is lane.iterator is None for lane in each.values()):
        return Lanes(count=count, each=dict.fromkeys(range(count), LaneState()))
    return Lanes(count=count, last=last if step else -1, each=each)


def _lane(worker: Mapping[str, Any], batches: int) -> LaneState:
    fetcher = worker["fetcher_state"] or {}
    parts = {"dataset": worker["dataset_state"], "iterator": fetcher.get("dataset_iter_state")}
    packed = {name: pack(part) for name, part in parts.items() if part is not None}
    return LaneState(
        batches=batches,
        ended=bool(fetcher.get("fetcher_ended", False)),
        at=batches if packed else 0,
        dataset=packed.get("dataset"),
        iterator=packed.get("iterator"),
    )
