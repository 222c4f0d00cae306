"""The number of cores that this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path


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
