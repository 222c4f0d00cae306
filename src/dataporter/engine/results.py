"""What an engine yields: every task with its batch, and whether the next is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dataporter.fetch import Late
from dataporter.sources.tasks import Task


class Results(NamedTuple):
    """Tasks with their batches. `is_there` says whether the next comes without waiting."""

    each: Iterator[tuple[Task, Any]]
    is_there: Callable[[], bool] = lambda: True

    def noted(self, note: Callable[[tuple[Task, Any]], tuple[Task, Any]]) -> Results:
        """The same, each of them as `note` returns it, but for what is not there yet."""

        def noted(result: tuple[Task, Any]) -> tuple[Task, Any]:
            return result if type(result[1]) is Late else note(result)

        return Results(map(noted, self.each), self.is_there)
