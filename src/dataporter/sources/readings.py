"""A reading: the rest of an epoch, with all that an engine and a pass need to deliver it.

Where batches may come in any order (`in_order=False`), `as_they_come` keeps the progress exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dataporter.fetch import Fetches
from dataporter.fetch.tasks import Renew, Task
from dataporter.law.ranges import Ranges, runs_of
from dataporter.law.state import Progress
from dataporter.sources.delivered import Delivered

# Says what a batch consists of; asked only if somebody wants to know. None for a stream.
Contents: TypeAlias = tuple[Callable[[Task], Delivered], Task] | None
# A batch, where the run stands once it is delivered, and what it consists of.
Result: TypeAlias = tuple[tuple[Progress, Contents], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The rest of an epoch: its tasks, their fetcher, and the progress after each delivery."""

    tasks: Iterator[Task]
    fetch: Fetches
    progress: Progress  # where the run stands before the first of them
    received: Callable[[Task, Any], Result]  # called for each result of an engine, in its order
    renew: Renew | None = None
    in_order: bool = True  # batches are delivered in the order of their tasks
    together: Callable[[Iterator[Result]], Iterator[Result]] = iter  # as all ranks deliver them


def as_they_come(reading: Reading) -> Reading:
    """Return a reading whose results may be received in any order."""
    return replace(reading, received=_Arrivals(reading).received, in_order=False)


class _Arrivals:
    """Keeps how far a run was delivered without a gap, and what ahead of that."""

    def __init__(self, reading: Reading) -> None:
        self._received_in_order = reading.received
        self._gapless = reading.progress
        self._next = reading.progress.batches_processed + 1
        self._early: dict[int, tuple[Progress, Ranges]] = {}  # delivered before their turn

    def received(self, task: Task, batch: Any) -> Result:
        """Take note of a delivery."""
        (progress, contents), batch = self._received_in_order(task, batch)
        samples: Any = task.payload
        self._early[task.number] = progress, runs_of(samples.positions)
        while self._next in self._early:
            self._gapless = self._early.pop(self._next)[0]
            self._next += 1
        ahead = {*self._gapless.ahead}
        for _, runs in self._early.values():
            ahead.update(runs)
        progress = self._gapless._replace(
            batches_processed=self._gapless.batches_processed + len(self._early),
            ahead=tuple(sorted(ahead)),
        )
        return (progress, contents), batch
