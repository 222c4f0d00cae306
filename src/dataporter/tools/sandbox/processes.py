"""Processes that fork on request: a new one costs milliseconds, not an import of torch.

    interpreter   a fresh Python that has imported dataporter, and nothing of the user's
    └── host      a fork of it that has imported the user's factory
        └── run   a fork of that, in which a loader is made and used once

Interpreters differ in their hash seed. They stay for a minute without work, so that a test suite
starts each of them once. Every process dies with the one above it. It leads a process group of its
own: killing the group kills all that the user's code has started there.

A fork of a process that has computed in parallel would wait for ever for OpenMP's threads, which
do not survive the fork. So torch gets a single thread there.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from os import getpid, getppid  # the true ones, also where a condition replaces them
from time import monotonic
from typing import Any, NoReturn, TypeAlias

import torch

from dataporter.errors import UnsupportedSystemError
from dataporter.system.processes import die_with

_IDLE_SECONDS = 60

# The work of a forked process, called with the channel to whoever asked for it and with whatever
# the process above it shares with its forks.
Task: TypeAlias = "Callable[[Connection, Any], None]"


def check_fork(what: str) -> None:
    """Raise on a system whose processes cannot fork, such as Windows."""
    if not hasattr(os, "fork"):
        msg = (
            f"{what} needs processes that fork, and this system ({sys.platform}) has none. Run it "
            "on Linux."
        )
        raise UnsupportedSystemError(msg)


class ProcessEndedError(Exception):
    """The other process is gone: it crashed, was killed, or ended itself."""


class TimeUpError(Exception):
    """The other process has not answered in time."""


def receive(channel: Connection, deadline: float | None = None) -> Any:
    """Receive an object, until `deadline` on the monotonic clock at the latest."""
    try:
        if not channel.poll(None if deadline is None else max(deadline - monotonic(), 0)):
            raise TimeUpError
        return channel.recv()
    except (EOFError, OSError):
        raise ProcessEndedError from None


class Process:
    """Another process, as seen by the one that gives it work."""

    def __init__(self, channel: Connection, pid: int, *, is_child: bool = False) -> None:
        self._channel = channel
        self.pid = pid
        self._is_child = is_child  # of this very process, which has to collect it

    def receive(self, deadline: float) -> Any:
        """Wait for the next object that it sends."""
        return receive(self._channel, deadline)

    def fork(self, task: Task, deadline: float) -> Process:
        """Make it fork a process that does `task`."""
        ours, theirs = Pipe()
        try:
            with theirs:
                reduction.send_handle(self._channel, theirs.fileno(), self.pid)
            ours.send(task)
            return Process(ours, receive(ours, deadline))
        except (ProcessEndedError, OSError):
            ours.close()
            raise ProcessEndedError from None
        except BaseException:
            ours.close()
            raise

    def kill(self) -> None:
        """End it with everything that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._is_child:
            os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        """Close the channel to a process that has ended by itself."""
        self._channel.close()


def fork_here(task: Task) -> Process:
    """Fork this process, for a factory that no other process can import."""
    ours, theirs = Pipe()
    parent, threads = os.getpid(), threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        pid = os.fork()
    if pid == 0:
        ours.close()
        _be_fork(theirs, parent, threads, None, task)
    theirs.close()
    return Process(ours, receive(ours), is_child=True)


def serve(
    control: Connection, shared: Any, *, idle: float | None = None, keeps_random: bool = False
) -> NoReturn:
    """Fork whenever asked to, until the asking process is gone.

    Python seeds `random` anew in each fork, unlike NumPy and torch. With `keeps_random`, forks
    continue the sequence, as they do with the other two.
    """
    gc.freeze()  # so that no collection in a fork copies the memory that all of them share
    _psutil()  # so that no fork has to import it
    parent = os.getpid()
    while True:
        try:
            if not control.poll(idle):
                if _has_children():  # they would die with this process
                    continue
                os._exit(0)
            channel = Connection(reduction.recv_handle(control))
        except (EOFError, OSError):
            os._exit(0)
        _has_children()
        threads, drawn = threading.active_count(), random.getstate()
        if os.fork() == 0:
            control.close()
            if keeps_random:
                random.setstate(drawn)
            _be_fork(channel, parent, threads, shared)
        channel.close()


def _has_children() -> bool:
    """Collect the children that have ended, and tell whether others are left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _be_fork(
    channel: Connection, parent: int, threads: int, shared: Any, task: Task | None = None
) -> NoReturn:
    """Do a task, and end without the parent's exit handlers.

    `threads` is the number of Python's threads in the parent.
    """
    try:
        os.setsid()
        die_with(parent)
        # OpenBLAS has ended its threads at the fork, so any others are likely to be OpenMP's.
        if _has_more_threads(getppid(), threads):
            torch.set_num_threads(1)
        channel.send(getpid())
        (receive(channel) if task is None else task)(channel, shared)
    except (BrokenPipeError, ProcessEndedError):
        pass  # nobody waits for an answer any more
    except BaseException:  # noqa: BLE001  nothing above this may run on in a fork
        traceback.print_exc()
    finally:
        os._exit(0)


def _has_more_threads(pid: int, count: int) -> bool:
    """Tell whether a process has more than `count` threads, or nobody can tell."""
    psutil = _psutil()
    return psutil is None or psutil.Process(pid).num_threads() > count


def _psutil() -> Any:
    """Return psutil; None without its extra, which the proof itself does not need."""
    try:
        import psutil  # noqa: PLC0415  see above
    except ModuleNotFoundError:
        return None
    return psutil


class Interpreters:
    """Fresh interpreters, one for each hash seed, started when first needed."""

    def __init__(self) -> None:
        self._started: dict[str, tuple[subprocess.Popen[bytes], Process]] = {}
        self._owner = os.getpid()

    def start(self, hash_seed: str, module: str) -> None:
        """Begin to start one that imports `module`, without waiting for it."""
        if self._owner != os.getpid():  # a fork has none of its own
            self._started, self._owner = {}, os.getpid()
        running = self._started.get(hash_seed)
        if running is not None:
            if running[0].poll() is None:
                return
            running[1].close()
        ours, theirs = Pipe()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        script = (
            f"import {module}; from {__name__} import be_interpreter as be; be({theirs.fileno()})"
        )
        with theirs:
            process = subprocess.Popen(  # noqa: S603  this interpreter, with our own script
                [sys.executable, "-c", script],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._started[hash_seed] = process, Process(ours, process.pid)

    def fork(self, hash_seed: str, module: str, task: Task, deadline: float) -> Process:
        """Fork one of them, and do `task` there."""
        self.start(hash_seed, module)
        try:
            return self._started[hash_seed][1].fork(task, deadline)
        except ProcessEndedError:  # it had just ended, for want of work
            self._started[hash_seed][0].wait()
            self.start(hash_seed, module)
            return self._started[hash_seed][1].fork(task, deadline)

    def kill(self) -> None:
        """End all of them."""
        if self._owner == os.getpid():
            for process, interpreter in self._started.values():
                interpreter.kill()
                process.wait()
        self._started = {}


fresh_interpreters = Interpreters()
atexit.register(fresh_interpreters.kill)


def be_interpreter(descriptor: int) -> NoReturn:
    """Serve as a fresh interpreter."""
    serve(Connection(descriptor), None, idle=_IDLE_SECONDS)
