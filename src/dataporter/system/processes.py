"""Processes: the cores that they may use, their end with their parent, errors sent between them."""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import sys
from pathlib import Path
from typing import Any

from dataporter.system.memory import libc

_PR_SET_PDEATHSIG = 1


def can_start_workers() -> bool:
    """Tell whether this system has the calls that workers need. Windows has not."""
    return libc is not None and hasattr(select, "poll")


def die_with(parent: int) -> None:
    """Make the system kill this process when its parent is gone, on Linux."""
    if sys.platform == "linux":
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended while this process was starting
            os._exit(1)


def usable_cores(root: Path = Path("/")) -> int:
    """Count the cores that the scheduler and the control group allow, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota(root)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _quota(root: Path) -> float | None:
    """Read the control group's limit in cores; None where there is none."""
    try:
        limit, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass  # no such file, or that of another version
    folder = root / "sys/fs/cgroup/cpu"
    try:
        limit, period = ((folder / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return None if int(limit) < 0 else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def pickled_error(error: BaseException) -> bytes | None:
    """Pickle an error; None if it would not come back with its type and message."""
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

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self._error), self._error.args, vars(self._error))


def _remade(
    kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error
