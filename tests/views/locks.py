"""How tests see that a process waits for a lock of a file."""

from pathlib import Path


def waits_for_a_lock(pid: int) -> bool:
    """The system's list of locks names those who wait for one by an arrow."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(line[1] == "->" and str(pid) in line for line in lines)
