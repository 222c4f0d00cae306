"""Arrivals: where a run stands when batches are delivered as they come (`in_order=False`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dataporter.fetch.tasks import Task
from dataporter.law.ranges import Ranges, runs_of
from dataporter.law.state import Progress
from dataporter.sources.source import Reading, Result


def as_they_come(reading: Reading) -> Reading:
    """Return a reading whose results may be received in any order."""
    return replace(reading, received=_Arrivals(reading).received)


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
