"""Errors on their way from a worker to the process that raises them."""

from __future__ import annotations

import os
import pickle
import traceback
from typing import Any

from dataporter.errors import WorkerError


class WorkerTraceback(Exception):  # noqa: N818  never raised: the cause of what is raised
    """The worker and the traceback of an error; the cause of the error that arrives."""

    def __str__(self) -> str:
        return "\n" + "".join(self.args)


def pack_error(error: Exception, worker: int, what: str = "") -> bytes:
    """Pack an error of this worker, with its traceback as text."""
    where = f"In worker {worker} (pid {os.getpid()}):\n"
    text = what + where + "".join(traceback.format_exception(error))
    return pickle.dumps((_rebuildable(error), type(error).__qualname__, text))


def unpack_error(packed: bytes) -> Exception:
    """Rebuild an error that a worker packed, with the worker's traceback as its cause."""
    pickled, name, text = pickle.loads(packed)  # noqa: S301  from a worker of ours
    if pickled is None:
        msg = f"{name} in a worker; the error itself cannot be pickled. {text}"
        return WorkerError(msg)
    error: Exception = pickle.loads(pickled)  # noqa: S301  likewise
    error.__cause__ = WorkerTraceback(text)
    return error


def _rebuildable(error: Exception) -> bytes | None:
    """Pickle an error; None if it would not come back as it is."""
    # Many classes cannot be made again from their args; then without their __init__.
    for way in (error, _WithoutInit(error)):
        try:
            pickled = pickle.dumps(way)
            again = pickle.loads(pickled)  # noqa: S301  our own, to see whether it can be rebuilt
            if type(again) is type(error) and str(again) == str(error):
                return pickled
        except Exception:  # noqa: BLE001, S112  whatever its class does when pickled or printed
            continue
    return None


class _WithoutInit:
    """Pickled in place of an error, comes back as that error: type, args and attributes."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self._error), self._error.args, vars(self._error))


def _remade(kind: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error
