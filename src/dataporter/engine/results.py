"""What an engine yields: every task with its batch, and whether the next is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dataporter.tasks import Task


class Results(NamedTuple):
    """Tasks with their batches. `is_there` says whether the next comes without waiting."""

    each: Iterator[tuple[Task, Any]]
    is_there: Callable[[], bool] = lambda: True

    def noted(self, note: Callable[[tuple[Task, Any]], tuple[Task, Any]]) -> Results:
        """The same, each of them as `note` returns it."""
        return Results(map(note, self.each), self.is_there)
