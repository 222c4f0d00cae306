"""Errors on their way from a worker to the process that raises them."""

from __future__ import annotations

import os
import pickle
import traceback

from dataporter.errors import WorkerError
from dataporter.system.processes import pickled_error


class WorkerTraceback(Exception):  # noqa: N818  never raised: the cause of what is raised
    """The worker and the traceback of an error; the cause of the error that arrives."""

    def __str__(self) -> str:
        return "\n" + "".join(self.args)


def pack_error(error: Exception, worker: int, what: str = "") -> bytes:
    """Pack an error of this worker, with its traceback as text."""
    where = f"In worker {worker} (pid {os.getpid()}):\n"
    text = what + where + "".join(traceback.format_exception(error))
    return pickle.dumps((pickled_error(error), type(error).__qualname__, text))


def unpack_error(packed: bytes) -> Exception:
    """Rebuild an error that a worker packed, with the worker's traceback as its cause."""
    pickled, name, text = pickle.loads(packed)  # noqa: S301  from a worker of ours
    if pickled is None:
        msg = f"{name} in a worker; the error itself cannot be pickled. {text}"
        return WorkerError(msg)
    error: Exception = pickle.loads(pickled)  # noqa: S301  likewise
    error.__cause__ = WorkerTraceback(text)
    return error
