"""Arrivals: where a run stands when batches are delivered as they come (`in_order=False`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dataporter.law.ahead import runs_of
from dataporter.law.state import Progress
from dataporter.sources.tasks import Task


class Arrivals:
    """Keeps how far a run was delivered without a gap, and what ahead of that.

    Tasks are numbered by their progress, one after another from that of the start.
    """

    def __init__(self, start: Progress) -> None:
        self._gapless = start
        self._next = start.batches_processed + 1
        self._early: dict[int, Task] = {}  # delivered before others that come before them

    def note(self, result: tuple[Task, Any]) -> tuple[Task, Any]:
        """Take note of a delivery; the task says then where the run stands."""
        task, batch = result
        self._early[task.progress.batches_processed] = task
        while self._next in self._early:
            self._gapless = self._early.pop(self._next).progress
            self._next += 1
        ahead = {*self._gapless.ahead}
        for early in self._early.values():
            ahead.update(runs_of(early.positions))
        progress = replace(
            self._gapless,
            batches_processed=self._gapless.batches_processed + len(self._early),
            ahead=tuple(sorted(ahead)),
        )
        return task._replace(progress=progress), batch
