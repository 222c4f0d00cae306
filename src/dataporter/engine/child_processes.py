"""Processes that die with the one that started them, and those that a command starts.

A command's child is a session of its own, so that a terminal's Ctrl-C reaches the command only,
which then ends its children. Where the command is killed, the system kills the children, and what
these have started in their turn is up to `take_offspring_along`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dataporter.engine.libc import libc
from dataporter.errors import UnsupportedSystemError

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_MOMENT = 3.0  # seconds
_PARENT = "DATAPORTER_PARENT"  # a variable with its process id


def check_fork(what: str) -> None:
    """Raise where processes cannot fork, as on Windows."""
    if not hasattr(os, "fork"):
        msg = (
            f"{what} needs processes that fork, and this system ({sys.platform}) has none. Run it "
            "on Linux."
        )
        raise UnsupportedSystemError(msg)


@contextlib.contextmanager
def started(
    commands: Sequence[Sequence[str]], folder: Path, **environment: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run some modules of this package as children; at the end none is left.

    Child *i* writes its errors to `i.err` in the folder, where its temporary files go too.
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


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child; what cleans up behind its processes has a moment to do so."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGTERM)
            os.killpg(child.pid, signal.SIGCONT)  # for those that stand still
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_MOMENT)
    deadline = time.monotonic() + _MOMENT
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(child.pid, 0)  # raises once there is nobody
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child by SIGKILL, with all processes of its session, and collect it."""
    # A child that has been collected has a number which may by now be another's.
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def die_with_command() -> None:
    """Have the system kill this child when the command that started it is gone."""
    die_with(int(os.environ[_PARENT]))


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent is gone."""
    if sys.platform == "linux":
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it went while this one was starting
            os._exit(1)


@contextlib.contextmanager
def take_offspring_along() -> Iterator[None]:
    """Have all processes of this child's session end with it, even those that stand still.

    A wish to die with one's parent is not inherited, and a process that stands still cannot look
    after its parent. So a guard does, a fork of this child. What these processes would clean up
    behind each other they have a moment for.
    """
    if sys.platform != "linux":
        yield
        return
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        guard = os.fork()
    if guard == 0:
        _guard(parent)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)


def _guard(parent: int) -> NoReturn:
    """Wait until the parent is gone, and end all of its group, this process included."""
    parent_went = signal.SIGUSR1
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {parent_went})
        libc.prctl(_DIE_WITH_PARENT, parent_went)
        if os.getppid() == parent:
            signal.sigwait({parent_went})
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        os.killpg(0, signal.SIGCONT)
        time.sleep(_MOMENT)
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
