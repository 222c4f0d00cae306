"""Processes that fork on request: a new process costs milliseconds, not the import of torch.

    nursery    a new interpreter that has imported dataporter and nothing of the user's
    └── host       a fork of it that has imported the user's factory
        └── player     a fork of that in which a loader is made and run, once

Nurseries differ in how they hash strings, as interpreters do, and stay for a minute without
work, so that a test suite starts them once. Each process dies with the one above it and is a
group of its own: to kill it is to kill all that the user's code has started there.

Of a process that has computed in parallel, a fork has OpenMP's records of its threads, but not
the threads, and would wait for them for ever. Where there may be such, torch has one thread.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import pickle
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from os import getpid, getppid  # the true ones, also where others are made to stand still
from time import monotonic
from typing import Any, NoReturn, TypeAlias

import torch

from dataporter.engine.child_processes import die_with

_IDLE_SECONDS = 60
_LENGTH = struct.Struct("!Q")

# What a forked process does: with the channel to whoever asked for it, and what its parent has.
Task: TypeAlias = Callable[[socket.socket, Any], None]


class ProcessEndedError(Exception):
    """The other process is gone: it crashed, was killed, or ended itself."""


class TimeUpError(Exception):
    """The other process has not answered in time."""


def send(channel: socket.socket, message: Any) -> None:
    """Send any object that can be pickled."""
    data = pickle.dumps(message)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket, deadline: float | None = None) -> Any:
    """Receive what was sent, until `deadline` on the monotonic clock at the latest."""
    (size,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, deadline))
    return pickle.loads(_exactly(channel, size, deadline))  # noqa: S301  from our own process


def _exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            raise TimeUpError
        channel.settimeout(left)
        try:
            piece = channel.recv(min(size - len(data), 2**20))
        except TimeoutError:
            raise TimeUpError from None
        except ConnectionError:
            piece = b""
        if not piece:
            raise ProcessEndedError
        data += piece
    return bytes(data)


class Process:
    """Another process, seen from the one that verifies."""

    def __init__(self, channel: socket.socket, pid: int, *, is_child: bool = False) -> None:
        self._channel = channel
        self._pid = pid
        self._is_child = is_child  # of this very process, which has to collect it

    def receive(self, deadline: float) -> Any:
        """Wait for what it sends next."""
        return receive(self._channel, deadline)

    def fork(self, task: Task, deadline: float) -> Process:
        """Have it fork a process that does `task`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._channel.settimeout(None)
                socket.send_fds(self._channel, [b"f"], [theirs.fileno()])
            send(ours, task)
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
            os.killpg(self._pid, signal.SIGKILL)
        if self._is_child:
            os.waitpid(self._pid, 0)
        self.forget()

    def forget(self) -> None:
        """Close the channel to it, since it has ended by itself."""
        self._channel.close()


def forked_here(task: Task) -> Process:
    """Fork this process, for what no other process can import."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    threads = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        pid = os.fork()
    if pid == 0:
        ours.close()
        _live(theirs, parent, threads, None, task)
    theirs.close()
    return Process(ours, receive(ours), is_child=True)


def serve(
    control: socket.socket,
    context: Any,
    *,
    idle: float | None = None,
    keeps_random: bool = False,
) -> NoReturn:
    """Fork whenever asked to, until nobody asks any more.

    Python seeds `random` anew in each fork, unlike NumPy and torch; with `keeps_random`, forks
    go on from where it is, as they do with the others.
    """
    gc.freeze()  # so that no collection in a fork copies what all of them share
    parent = os.getpid()  # of all forks
    while True:
        control.settimeout(idle)
        try:
            asked, descriptors, *_ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            if _has_children():  # they would die with this process
                continue
            os._exit(0)
        except ConnectionError:
            os._exit(0)
        if not asked:
            os._exit(0)
        _has_children()
        channel = socket.socket(fileno=descriptors[0])
        threads = threading.active_count()
        if (_fork_drawing_on() if keeps_random else os.fork()) == 0:
            control.close()
            _live(channel, parent, threads, context)
        channel.close()


def _fork_drawing_on() -> int:
    drawn = random.getstate()
    pid = os.fork()
    if pid == 0:
        random.setstate(drawn)
    return pid


def _has_children() -> bool:
    """Collect the processes that have ended, and say whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _live(
    channel: socket.socket, parent: int, threads: int, context: Any, task: Task | None = None
) -> NoReturn:
    """Be a forked process: do a task, and end without what the parent does at its end.

    `threads` are those that Python has in the parent.
    """
    try:
        os.setsid()
        die_with(parent)
        # What OpenBLAS had has ended at the fork, so that others are likely to be OpenMP's.
        if _threads_of(getppid()) > threads:
            torch.set_num_threads(1)
        send(channel, getpid())
        (receive(channel) if task is None else task)(channel, context)
    except (BrokenPipeError, ProcessEndedError):
        pass  # nobody waits for an answer any more
    except BaseException:  # noqa: BLE001  nothing above this may go on in a fork
        traceback.print_exc()
    finally:
        os._exit(0)


def _threads_of(pid: int) -> float:
    """How many threads a process has; any number where the system does not list them."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208  only their number
    except FileNotFoundError:
        return math.inf


class Nurseries:
    """One nursery for each way to hash strings, started when it is asked for."""

    def __init__(self) -> None:
        self._started: dict[str, tuple[subprocess.Popen[bytes], Process]] = {}
        self._owner = os.getpid()

    def start(self, hash_seed: str) -> None:
        """Begin to start one, without waiting for it."""
        if self._owner != os.getpid():  # a fork has none of its own
            self._started, self._owner = {}, os.getpid()
        running = self._started.get(hash_seed)
        if running is not None:
            if running[0].poll() is None:
                return
            running[1].forget()
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        script = f"from dataporter.tools.verify.processes import nurse; nurse({theirs.fileno()})"
        with theirs:
            process = subprocess.Popen(  # noqa: S603  this interpreter, with our own script
                [sys.executable, "-c", script],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._started[hash_seed] = process, Process(ours, process.pid)

    def fork(self, hash_seed: str, task: Task, deadline: float) -> Process:
        """Have a nursery fork a process that does `task`."""
        self.start(hash_seed)
        try:
            return self._started[hash_seed][1].fork(task, deadline)
        except ProcessEndedError:  # it had just left, for want of work
            self._started[hash_seed][0].wait()
            self.start(hash_seed)
            return self._started[hash_seed][1].fork(task, deadline)

    def close(self) -> None:
        """End all of them."""
        if self._owner == os.getpid():
            for process, nursery in self._started.values():
                nursery.kill()
                process.wait()
        self._started = {}


nurseries = Nurseries()
atexit.register(nurseries.close)


def nurse(descriptor: int) -> NoReturn:
    """Be a nursery."""
    serve(socket.socket(fileno=descriptor), None, idle=_IDLE_SECONDS)
