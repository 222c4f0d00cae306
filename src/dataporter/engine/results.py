"""Results of an engine: every task with its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dataporter.fetch import Late
from dataporter.fetch.tasks import Task


class Running(NamedTuple):
    """The batches and workers of an engine at one moment."""

    ready: int = 0  # batches that are fetched and wait to be taken
    workers: int = 0


class Results(NamedTuple):
    """Tasks with their batches. `is_there()` tells whether the next comes without waiting.

    `look()` may be called at any moment, from any thread and in signal handlers; it changes nothing
    and keeps no engine alive.
    """

    each: Iterator[tuple[Any, Any]]
    is_there: Callable[[], bool] = lambda: True
    look: Callable[[], Running] = Running

    def received(self, receive: Callable[[Task, Any], tuple[Any, Any]]) -> Results:
        """Pass every task and batch through `receive`, except a batch that is late."""

        def received(result: tuple[Task, Any]) -> tuple[Any, Any]:
            return result if type(result[1]) is Late else receive(*result)

        return self._replace(each=map(received, self.each))
