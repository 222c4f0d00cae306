"""The machine of a run: its description, and how busy others kept it.

All of it comes from /proc, so nothing needs to be installed. Where there is no /proc, how busy the
machine is stays unknown.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from dataporter.system.processes import usable_cores

BUSY = 0.05  # share of the cores that others may use before a row is not to be trusted
STOLEN = 0.02  # likewise, of time that the host gave to other machines
_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PROC = Path("/proc")


def describe() -> dict[str, Any]:
    """Describe the machine at the beginning of a run."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}",
        "load_before": load(),
    }


def load() -> list[float]:
    """The load of the machine over 1, 5 and 15 minutes."""
    return [round(number, 2) for number in os.getloadavg()]


def line(machine: dict[str, Any]) -> str:
    """A description in one line."""
    before = ", ".join(map(str, machine["load_before"]))
    return (
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, "
        f"torch {machine['torch']}, {machine['date']} UTC; load before: {before}"
    )


def _processor() -> str:
    with suppress(OSError):
        for row in (_PROC / "cpuinfo").read_text().splitlines():
            if row.startswith("model name"):
                return row.split(":", 1)[1].strip()
    return platform.machine()


@dataclass(frozen=True, slots=True)
class Clocks:
    """Processor seconds so far, of the cores that may be used."""

    wall: float
    busy: float
    stolen: float
    own: float  # of this process and all below it
    throttled: float  # that the control group has withheld

    @classmethod
    def now(cls) -> Clocks | None:
        """Read the clocks, where the system shows them."""
        try:
            busy, stolen = _system_seconds()
        except (AttributeError, OSError, ValueError):  # not Linux
            return None
        return cls(time.monotonic(), busy, stolen, _own_seconds(), _throttled_seconds())

    def shares_since(self, before: Clocks) -> dict[str, float]:
        """Shares of the cores' time since then that were not ours to use."""
        capacity = (self.wall - before.wall) * len(os.sched_getaffinity(0))
        others = self.busy - before.busy - (self.own - before.own)
        return {
            "others": others / capacity,
            "stolen": (self.stolen - before.stolen) / capacity,
            "withheld": (self.throttled - before.throttled) / capacity,
        }


def reasons_for_distrust(shares: dict[str, float]) -> list[str]:
    """Put the shares that are too large into words."""
    found = []
    if shares.get("others", 0) > BUSY:
        found.append(f"other processes used {shares['others']:.0%} of the cores")
    if shares.get("stolen", 0) > STOLEN:
        found.append(f"the host gave {shares['stolen']:.0%} of the cores' time to others")
    if shares.get("withheld", 0) > STOLEN:
        found.append(f"the control group withheld {shares['withheld']:.0%} of the cores' time")
    return found


def _system_seconds() -> tuple[float, float]:
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    busy = stolen = 0
    for row in (_PROC / "stat").read_text().splitlines():
        name, *ticks = row.split()
        if name in names:
            user, nice, system, _idle, _waits, irq, soft, steal = map(int, ticks[:8])
            busy += user + nice + system + irq + soft
            stolen += steal
    return busy / _TICK, stolen / _TICK


def _throttled_seconds() -> float:
    with suppress(OSError):
        for row in Path("/sys/fs/cgroup/cpu.stat").read_text().splitlines():
            if row.startswith("throttled_usec"):
                return int(row.split()[1]) / 1e6
    return 0.0


def _own_seconds() -> float:
    """Processor time of this process, all below it, and those of them that have ended."""
    stats = dict(_stats())
    own = _tree(os.getpid(), stats)
    return sum(int(tick) for each in own if each in stats for tick in stats[each][11:15]) / _TICK


def _tree(root: int, stats: dict[int, list[str]]) -> set[int]:
    """A process and all below it."""
    own, found = {root}, {root}
    while found:
        found = {child for child, stat in stats.items() if int(stat[1]) in found}
        own |= found
    return own


def tree_memory_mb(root: int) -> tuple[float, float]:
    """Memory of a process and all below it, in MB: their own, and pages of files they map.

    The system takes pages of files back when it needs them. Shared pages count once.
    """
    own = files = 0
    for process in _tree(root, dict(_stats())):
        with suppress(OSError, KeyError):  # it has just ended, or an old kernel
            sizes = _rollup(process)
            own += sizes["Pss_Anon"] + sizes["Pss_Shmem"]
            files += sizes["Pss_File"]
    return own / 1e6, files / 1e6


def group_memory_mb(group: int) -> float | None:
    """Memory of this process and of a process group below it, in MB.

    Pages that processes share count once; so does shared memory that no process has touched yet.
    Code of libraries does not count: it is the same for all.
    """
    private = mapped = 0
    files: dict[tuple[int, int], int] = {}
    members = [process for process, stat in _stats() if int(stat[2]) == group]
    for process in (os.getpid(), *members):
        with suppress(OSError, KeyError):  # it has just ended, or an old kernel
            sizes = _rollup(process)
            private += sizes["Pss_Anon"]
            mapped += sizes["Pss_Shmem"]
            files.update(_shared_files(process))
    if not private:
        return None
    return (private + max(mapped, sum(files.values()))) / 1e6


def _rollup(process: int) -> dict[str, int]:
    """Bytes of a process by kind."""
    rows = (_PROC / str(process) / "smaps_rollup").read_text().splitlines()[1:]
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in map(str.split, rows)}


def _shared_files(process: int) -> dict[tuple[int, int], int]:
    """Bytes of each open file that lies in shared memory."""
    found = {}
    for descriptor in (_PROC / str(process) / "fd").iterdir():
        with suppress(OSError):
            if str(descriptor.readlink()).startswith(("/memfd:", "/dev/shm/")):  # noqa: S108  read
                status = descriptor.stat()
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return found


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Every process, with the fields of its `stat` behind its name."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()


def stay_on_one_core() -> None:
    """Run this process on the last of its cores, where those that take turns with it run too.

    Cores of one machine differ by 20 % and more where others use its threads and caches.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
