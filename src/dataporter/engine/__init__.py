"""Who runs tasks. An engine knows nothing of orders and states.

It takes an iterator of tasks and yields each with its batch, in the same order. So far
there is one: `inline`, in the process and thread that asks.
"""

from dataporter.engine.inline import run_inline

__all__ = ["run_inline"]
