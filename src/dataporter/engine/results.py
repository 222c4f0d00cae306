"""What an engine yields: every task with its batch, and whether the next is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dataporter.tasks import Task


class Results(Iterator[tuple[Task, Any]]):
    """Tasks with their batches. `is_there` says whether the next comes without waiting."""

    def __init__(
        self, each: Iterator[tuple[Task, Any]], is_there: Callable[[], bool] = lambda: True
    ) -> None:
        self._each = each
        self.is_there = is_there

    def __next__(self) -> tuple[Task, Any]:
        return next(self._each)
