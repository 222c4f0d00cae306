"""Workers that stand still while it is not their turn, so that nobody works ahead meanwhile.

Only where the system lists processes as files (Linux); elsewhere nobody is stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path


def offspring() -> set[int]:
    """All processes that this one has started, and those that they have."""
    parents = dict(_parents())
    found: set[int] = set()
    newer = {os.getpid()}
    while newer:
        newer = {pid for pid, parent in parents.items() if parent in newer} - found
        found |= newer
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = status.read_text().rpartition(")")[2].split()[1]
            yield int(status.parent.name), int(parent)


def stoppable(pids: set[int]) -> set[int]:
    """Those that may be stopped: not what multiprocessing has for all of its processes."""
    return {pid for pid in pids if "resource_tracker" not in _command(pid)}


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def stop(pids: set[int]) -> None:
    """Have processes stand still."""
    _signal(pids, signal.SIGSTOP)


def go_on(pids: set[int]) -> None:
    """Have them go on."""
    _signal(pids, signal.SIGCONT)


def in_its_turn(work: Callable[[], None], pids: set[int]) -> Callable[[], None]:
    """Have some processes run while something is done, and only then."""

    def turn() -> None:
        go_on(pids)
        work()
        stop(pids)

    return turn


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
