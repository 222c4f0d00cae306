"""The inline engine: each batch is fetched when it is asked for, where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dataporter.engine.pinning import pinned
from dataporter.engine.worker import Fetches
from dataporter.fetch import EMPTY, Failed
from dataporter.tasks import Task


def run_inline(
    tasks: Iterator[Task], fetch: Fetches, *, pin_memory: bool = False
) -> Iterator[tuple[Task, Any]]:
    """Yield every task with its batch, page-locked if asked for and a device is there."""
    # No batch is held in a variable here: it is the caller's alone, to keep or to free.
    pins = pin_memory and torch.accelerator.is_available()
    for task in tasks:
        yield task, attempted(fetch, task, pins=pins)


def attempted(fetch: Fetches, task: Task, *, pins: bool) -> Any:
    """Fetch a task's batch, or say why not."""
    try:
        batch = fetch(task.indices, task.positions, task.stream)
        return pinned(batch) if pins and batch is not EMPTY else batch
    except Exception as error:  # noqa: BLE001  it is the caller's to raise
        return Failed(error)
