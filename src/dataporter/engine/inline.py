"""The inline engine: each batch is fetched when it is asked for, where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dataporter.engine.pinning import pinned
from dataporter.engine.worker import Fetches
from dataporter.fetch import EMPTY
from dataporter.tasks import Task


def run_inline(
    tasks: Iterator[Task], fetch: Fetches, *, pin_memory: bool = False
) -> Iterator[tuple[Task, Any]]:
    """Yield every task with its batch, page-locked if asked for and a device is there."""
    # No batch is held in a variable here: it is the caller's alone, to keep or to free.
    if pin_memory and torch.accelerator.is_available():
        for task in tasks:
            batch = fetch(task.indices, task.positions, task.stream)
            yield task, batch if batch is EMPTY else pinned(batch)
    else:
        for task in tasks:
            yield task, fetch(task.indices, task.positions, task.stream)
