"""Engines run tasks. An engine takes an iterator of tasks and yields each with its batch.

`inline` runs them in the process and thread that asks, `processes` in worker processes, `threads`
in threads, `ray` in actors of a Ray cluster. From any of them, `device` brings batches to a
device. `runner` chooses among them for a loader. An engine knows nothing of orders and states.
"""

from dataporter.engine.budget import PREFETCH_BYTES
from dataporter.engine.interface import OLDEST_RAY, OWN_RAY_OPTIONS, WorkerOptions
from dataporter.engine.runner import Runner

__all__ = [
    "OLDEST_RAY",
    "OWN_RAY_OPTIONS",
    "PREFETCH_BYTES",
    "Runner",
    "WorkerOptions",
]
