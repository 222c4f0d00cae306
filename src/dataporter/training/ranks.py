"""Work with one outcome on all ranks of a process group: the same result or the same error.

A rank that failed alone would leave the others waiting in their next collective call. So ranks
exchange their outcomes, errors included, and all of them return or all of them raise. Without a
process group the work is simply done.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

import torch.distributed as dist

from dataporter.errors import CheckpointError
from dataporter.law import Topology
from dataporter.ranks import group_topology

T = TypeVar("T")


class _Outcome(Generic[T]):
    """The return value or the error of some work on one rank."""

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
        return {"error": _picklable(self.error)}


def _picklable(error: Exception) -> Exception:
    """Return the error if another process can rebuild it, else an error with its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  a user's pickling may raise anything
        return CheckpointError(f"{type(error).__name__}: {error}")
    return error


def topology() -> Topology:
    """Return this process's rank and the world size."""
    return group_topology() or Topology()


def on_every_rank(work: Callable[[], T]) -> list[T]:
    """Run `work` on each rank, and return the results of all ranks on every rank.

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
    """Run `work` on rank 0 while the others wait, and return its result on every rank.

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
    """Return one state if all ranks have the same, as is usual for loaders, else all of them.

    >>> without_repetition([{"epoch": 1}, {"epoch": 1}])
    [{'epoch': 1}]
    """
    first, *others = states
    try:
        same = all(bool(other == first) for other in others)
    except (RuntimeError, ValueError):  # the comparison of tensors and arrays is no bool
        same = False
    return [first] if same else [first, *others]
