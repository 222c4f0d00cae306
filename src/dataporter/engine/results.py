"""What an engine yields: every task with its batch, and whether the next is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dataporter.tasks import Task


class Results(NamedTuple):
    """Tasks with their batches. `is_there` says whether the next comes without waiting."""

    each: Iterator[tuple[Task, Any]]
    is_there: Callable[[], bool] = lambda: True
