"""The child processes of a command: started as modules of this package, and ended with it.

A child leads a session of its own, so that a terminal's Ctrl-C reaches the command only, which
then ends its children. If the command is killed, the system kills the children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dataporter.system.processes import die_with
from dataporter.tools.sandbox.processes import check_fork

if hasattr(os, "fork"):  # else no child is ever started
    import psutil

_MOMENT = 3.0  # seconds
_PARENT = "DATAPORTER_PARENT"  # a variable with its process id


@contextlib.contextmanager
def started(
    commands: Sequence[Sequence[str]], folder: Path, **environment: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run modules of this package as children; at the end none is left.

    Child *i* writes its errors to `i.err` in the folder, and its temporary files there too.
    """
    check_fork("This command")
    children: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"{number}.err").open("wb") as errors:
                children.append(_child(command, errors.fileno(), _variables(folder, environment)))
        yield children
    finally:
        for child in children:
            _end(child)


def _child(
    command: Sequence[str], errors: int, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  this interpreter, with our own modules
        [sys.executable, "-m", *command],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )


def _variables(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    own = {"PYTHONPATH": path, "TMPDIR": str(folder), _PARENT: str(os.getpid())}
    return {**os.environ, **own, **more}


def session(leader: int) -> list[psutil.Process]:
    """List the processes of a session, which include those whose parent has ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child with its session, whose processes have a moment to clean up."""
    members = session(child.pid)
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            process.resume()  # it may be stopped
    psutil.wait_procs(members, timeout=_MOMENT)
    for process in session(child.pid):  # also those that were started meanwhile
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child by SIGKILL, with all processes of its session, and collect it."""
    # The number of a child that was collected may belong to another process by now.
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def die_with_command() -> None:
    """Make the system kill this child when the command that started it is gone."""
    die_with(int(os.environ[_PARENT]))
