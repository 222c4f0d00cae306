"""Who runs tasks. An engine knows nothing of orders and states.

It takes an iterator of tasks and yields each with its batch: `inline`
in the process and thread that asks, `processes` in worker processes, `threads` in threads.
From any of them, `device` brings batches to a device. `runner` is all of them, for a loader.
"""

from dataporter.engine.cores import usable_cores
from dataporter.engine.crew import WorkerOptions, can_start_workers
from dataporter.engine.results import Results
from dataporter.engine.runner import Runner

__all__ = [
    "Results",
    "Runner",
    "WorkerOptions",
    "can_start_workers",
    "usable_cores",
]
