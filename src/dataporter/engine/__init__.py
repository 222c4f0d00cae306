"""Who runs tasks. An engine knows nothing of orders and states.

It takes an iterator of tasks and yields each with its batch: `inline`
in the process and thread that asks, `processes` in worker processes, `threads` in threads.
From any of them, `device` brings batches to a device.
"""

from dataporter.engine.cores import usable_cores
from dataporter.engine.crew import WorkerOptions
from dataporter.engine.device import sender, sent_ahead
from dataporter.engine.inline import run_inline
from dataporter.engine.processes import ProcessEngine, Renew
from dataporter.engine.results import Results
from dataporter.engine.threads import run_in_threads
from dataporter.engine.worker import Fetches

__all__ = [
    "Fetches",
    "ProcessEngine",
    "Renew",
    "Results",
    "WorkerOptions",
    "run_in_threads",
    "run_inline",
    "sender",
    "sent_ahead",
    "usable_cores",
]
