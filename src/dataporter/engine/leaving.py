"""Worker processes that were told to end: none stays, neither alive nor as a zombie.

They are not waited for, since a worker takes milliseconds to end and may have a batch in hand.
So every batch that a loader delivers, every start and every end of workers looks after those that
are leaving, and so does Python's garbage collector, for a process that uses no loader any more:
what has ended is collected, what has not after `_GRACE` is killed. If Python code runs in it, it
ends by itself then, even if its parent does nothing any more. At exit all are killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

# Seconds in which a worker may finish the batch in hand, which nobody will see: its dataset may
# hold a lock or be writing to a file meanwhile. As long as torch's loader waits.
_GRACE = 5.0


class _Leaver(NamedTuple):
    deadline: float
    reads: int  # the id of its dataset


_started: set[BaseProcess] = set()  # every worker of this process not known to have ended
_leaving: dict[BaseProcess, _Leaver] = {}  # those of them that were told to end, oldest first
_owner: int | None = None


def remember(process: BaseProcess) -> None:
    """Have a worker that was started killed at exit."""
    global _owner  # noqa: PLW0603  a fork inherits the list, not the workers
    if os.getpid() != _owner:
        _owner = os.getpid()
        _started.clear()
        _leaving.clear()
        # By multiprocessing's own way, which its processes take as well, and before it
        # waits for its children.
        Finalize(None, _at_exit, exitpriority=100)
        if _at_collection not in gc.callbacks:
            gc.callbacks.append(_at_collection)
    _started.add(process)


def forget(process: BaseProcess) -> None:
    """Take note that a worker has ended and its exit status was collected."""
    _started.discard(process)
    _leaving.pop(process, None)


def see_off(process: BaseProcess, *, reads: int, at_once: bool = False) -> None:
    """Look after a worker that was told to end, until it has."""
    _leaving[process] = _Leaver(time.monotonic() + (0 if at_once else _GRACE), reads)
    if process.is_alive() and process.pid:
        with contextlib.suppress(ProcessLookupError):  # one of a fork server's, just now
            os.kill(process.pid, signal.SIGKILL if at_once else signal.SIGALRM)


def end_soon(*_: object) -> None:
    """In a worker, on SIGALRM: be killed by the next one, when what is in hand has had its time."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _GRACE)


def look_after_leavers() -> None:
    """Collect what has ended, and kill what has not in time. Waits for nobody."""
    if not _leaving or os.getpid() != _owner:
        return
    now = time.monotonic()
    # Keys alone: to make tuples of them with their values may begin a collection of garbage, which
    # looks after leavers itself.
    for process in list(_leaving):
        leaver = _leaving.get(process)
        if leaver is None or not process.is_alive():  # this also collects the exit status
            forget(process)
        elif now >= leaver.deadline:
            process.kill()


def limit_leavers(most: int, *, reads: int) -> None:
    """Kill the oldest of those that are leaving, where more than `most` read the same dataset."""
    look_after_leavers()
    leaving = [(process, _leaving.get(process)) for process in list(_leaving)]
    same = [process for process, leaver in leaving if leaver is not None and leaver.reads == reads]
    for process in same[: max(len(same) - most, 0)]:
        process.kill()


def await_leavers(processes: Iterable[BaseProcess], seconds: float) -> None:
    """Wait a moment for workers that have nothing left to do but to end."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as opened:
        poll, left = select.poll(), 0
        for process in processes:
            if process in _leaving and process.is_alive():
                watched = watch(process)
                if watched != process.sentinel:
                    opened.callback(os.close, watched)
                poll.register(watched, select.POLLIN)
                left += 1
        while left:
            ended = poll.poll(max(deadline - time.monotonic(), 0) * 1000)
            if not ended:
                break
            for watched, _ in ended:
                poll.unregister(watched)
            left -= len(ended)
    look_after_leavers()


def watch(process: BaseProcess) -> int:
    """A descriptor that is ready when a process has ended."""
    # Not multiprocessing's own: a process that was forked at that moment keeps the pipe's
    # other end, and a fork server that dies closes it, whatever becomes of the worker.
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # an old kernel
            return os.pidfd_open(process.pid or 0)
    return process.sentinel


def _at_collection(phase: str, _: dict[str, Any]) -> None:
    if _leaving and phase == "stop":
        look_after_leavers()


def _at_exit() -> None:
    """Leave the interpreter at once: workers hold nothing."""
    for process in tuple(_started):
        process.kill()
