"""Sharing lanes: the lanes of a rank, and the checks of a state's lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dataporter.errors import FastForwardWarning, StateMismatchError, TopologyError
from dataporter.fetch import EMPTY, Late
from dataporter.law import Topology
from dataporter.law.lane_states import Lanes, LaneState
from dataporter.law.state import Progress
from dataporter.sources.lanes.lane import is_stateful
from dataporter.sources.readings import Result
from dataporter.sources.users_sampler import has_state
from dataporter.user_warnings import warn_user

_LOOKED_AHEAD = 8  # steps, more than a pass ever asks for before it hands one over


def own_lanes(count: int, topology: Topology, *, split: bool) -> Sequence[int]:
    """The lanes that a rank reads: its share if lanes are split among ranks, else all.

    >>> list(own_lanes(5, Topology(rank=1, world_size=2), split=True))
    [1, 3]
    """
    return range(topology.rank, count, topology.world_size) if split else range(count)


def fresh_lanes(count: int, own: Sequence[int], *, iterable: bool) -> Lanes:
    """Lanes of which nothing has been delivered."""
    # Whoever reads it, a lane of an iterable sees the same `get_worker_info()`.
    told = True if iterable and count == 1 else None
    return Lanes(count=count, each={lane: LaneState() for lane in own}, has_worker_info=told)


def share_of(lanes: Lanes, topology: Topology, *, split: bool) -> Lanes:
    """Take a rank's share out of a state's lanes."""
    own = own_lanes(lanes.count, topology, split=split)
    missing = [lane for lane in own if lane not in lanes.each]
    if missing:
        msg = (
            f"the state has not all lanes of this rank: {missing} of {lanes.count} are missing, "
            "since another rank read them. Pass the states of all ranks, as a list."
        )
        raise StateMismatchError(msg)
    return lanes._replace(each={lane: lanes.each[lane] for lane in own})


def check_reading_again(
    progress: Progress,
    saved_size: int | None,
    present_size: int | None,
    *,
    dataset: Any,
    snapshot_every: int,
) -> None:
    """Refuse or warn of lanes of which a part has to be read again."""
    each = {} if progress.lanes is None else progress.lanes.each
    going = {lane: state for lane, state in each.items() if not state.ended}
    again = {lane: state for lane, state in going.items() if state.batches > state.at}
    if not again:
        return
    if saved_size != present_size:
        msg = (
            f"batch_size changed: the state was saved with batch_size={saved_size}, this loader "
            f"has batch_size={present_size}, and lanes {sorted(again)} have to be read again batch "
            f"by batch. Resume with batch_size={saved_size}."
        )
        raise StateMismatchError(msg)
    without = [state for state in again.values() if not (state.dataset or state.iterator)]
    # Before the first snapshot is due, nothing else was asked for.
    if without and progress.batches_processed >= snapshot_every:
        count = sum(state.batches for state in without)
        why, remedy = _why_again(dataset)
        msg = f"{why}: {count} batches are read again and dropped. {remedy}"
        warn_user(msg, FastForwardWarning)


def _why_again(dataset: Any) -> tuple[str, str]:
    """Say why a state has none of the dataset, and how the next would have one."""
    name = type(dataset).__name__
    if is_stateful(dataset):
        return f"the state holds none of {name}", "States saved from now on do."
    if has_state(dataset):
        return (
            f"the state_dict of {name} leaves out what is in its shuffle buffer",
            "Without that buffer it resumes at once.",
        )
    return (
        f"neither {name} nor its iterator has state_dict and load_state_dict",
        "Give one of them both to resume at once.",
    )


class Together:
    """Ends the passes of all ranks with the first that ends.

    Ranks are asked once for each step, also where one of them is interrupted and fetches it again.
    """

    def __init__(self) -> None:
        self._group: Any = None
        self._is_joining = False
        # By number of the step, None for the end: what was asked, and the answer on its way.
        self._asked: dict[int | None, tuple[torch.Tensor, list[Any]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Together, ()

    def forget(self) -> None:
        """Ask anew from now on: another pass begins, or a loaded state is followed."""
        self._asked = {}

    def ended(self, results: Iterator[Result]) -> Iterator[Result]:
        """Yield results as long as every rank has one."""
        if not (dist.is_available() and dist.is_initialized()):
            msg = (
                "tail='drop' ends an iterable on all ranks at once, and needs a process group for "
                "that: call torch.distributed.init_process_group() first, or use tail='uneven'."
            )
            raise TopologyError(msg)
        self._join()
        for result in results:
            if result[1] is not EMPTY and type(result[1]) is not Late:
                step = result[0][0].batches_processed
                if not self._all_have(step, 1):
                    return
                self._asked.pop(step - _LOOKED_AHEAD, None)
            yield result
        self._all_have(None, 0)

    def _join(self) -> None:
        if self._group is not None:
            return
        if self._is_joining:
            msg = (
                "tail='drop': this rank was interrupted while all ranks joined a process group, "
                "and they cannot join it again. Build the loader anew on all ranks."
            )
            raise TopologyError(msg)
        self._is_joining = True
        self._group = dist.new_group(backend="gloo")

    def _all_have(self, step: int | None, mine: int) -> bool:
        have, answers = self._asked.setdefault(step, (torch.tensor([mine]), []))
        if not answers:
            # In C alone: no handler of a signal runs between the question and the note of it.
            answers.extend(map(self._group.allreduce, [[have]], [dist.ReduceOp.MIN]))
        answers[0].wait()
        return bool(have.item())
