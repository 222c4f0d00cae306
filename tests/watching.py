"""How tests watch processes: wait with a deadline, list workers, look into /proc."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until a condition holds, and return what it returned."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.002)
    return result


def worker_pids() -> list[int]:
    """The live worker processes of this process."""
    children = multiprocessing.active_children()
    return sorted(c.pid or 0 for c in children if c.name.startswith("dataporter worker"))


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def state_of(pid: int) -> str:
    """The letter by which the system tells what a process does: R, S, T, Z ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names are all that is needed


def resident_bytes() -> int:
    """Memory of this process alone: pages shared with workers are the arena's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def arena_bytes() -> int:
    """Memory that the arenas of this process have, however many descriptors they have."""
    arenas = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(link).startswith("/memfd:dataporter"):  # noqa: PTH115  no file's name
                status = link.stat()
                arenas[status.st_ino] = status.st_blocks * 512
    return sum(arenas.values())


def environment() -> dict[str, str]:
    """For a child that imports what this process can."""
    return {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}


def run_script(script: str, *arguments: object, timeout: float = 60) -> str:
    """Run a script to its end, in silence; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout
