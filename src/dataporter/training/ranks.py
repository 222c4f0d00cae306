"""Work that all ranks of a process group come out of alike: same answer or same error.

A rank that fails alone would leave the others waiting for it in their next collective call.
So outcomes are exchanged, errors too, and every rank returns or raises. Without a process
group the work is simply done.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

import torch.distributed as dist

from dataporter.errors import CheckpointError
from dataporter.law import Topology
from dataporter.samplers import group_topology

T = TypeVar("T")


class _Outcome(Generic[T]):
    """What some work returned or raised on one rank."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.error: Exception | None = None
        try:
            self.answer: T | None = work()
        except Exception as error:  # noqa: BLE001  raised again, on every rank
            self.error = error

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.answer)

    def __getstate__(self) -> dict[str, Any]:
        if self.error is None:
            return {"answer": self.answer, "error": None}
        return {"error": _that_travels(self.error)}


def _that_travels(error: Exception) -> Exception:
    """The error itself if another process can rebuild it, else its words."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  whatever its pickling does
        return CheckpointError(f"{type(error).__name__}: {error}")
    return error


def topology() -> Topology:
    """This process's rank, and how many there are."""
    return group_topology() or Topology()


def on_every_rank(work: Callable[[], T]) -> list[T]:
    """Do something on each rank, and return what each returned; it travels to all of them.

    >>> on_every_rank(lambda: "done")
    ['done']
    """
    mine = _Outcome(work)
    if topology().world_size == 1:
        return [mine.get()]
    outcomes: list[Any] = [None] * topology().world_size
    dist.all_gather_object(outcomes, mine)
    outcomes[topology().rank] = mine  # with the traceback of an error
    return [outcome.get() for outcome in outcomes]


def on_first_rank(work: Callable[[], T]) -> T:
    """Do something on rank 0 while the others wait, and return on all what it returned.

    >>> on_first_rank(lambda: "done")
    'done'
    """
    if topology().world_size == 1:
        return work()
    outcomes: list[Any] = [_Outcome(work) if topology().rank == 0 else None]
    mine = outcomes[0]
    dist.broadcast_object_list(outcomes, src=0)
    return cast("_Outcome[T]", mine or outcomes[0]).get()


def without_repetition(states: Iterable[T]) -> list[T]:
    """One state if it is the same on every rank, as a loader's mostly is; else each rank's.

    >>> without_repetition([{"epoch": 1}, {"epoch": 1}])
    [{'epoch': 1}]
    """
    first, *others = states
    try:
        same = all(bool(other == first) for other in others)
    except (RuntimeError, ValueError):  # tensors and arrays do not compare so simply
        same = False
    return [first] if same else [first, *others]
