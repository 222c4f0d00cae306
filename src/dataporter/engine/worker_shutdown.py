"""Leaving workers: processes that were told to end. None stays, neither alive nor as a zombie.

Nobody waits for one that may have a batch in hand. At the end of a pass the others get a moment,
which is mostly over by then, since they were told before the last batch was used. Besides, every
delivery of a batch, every start and every end of workers looks after those that are leaving, and so
does Python's garbage collector, for a process that uses no loader any more. Exit statuses are
collected, and a worker that is still alive after `_GRACE` is killed. A worker also ends itself
after that time, unless it is stuck outside Python code. At exit all are killed.
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

from dataporter.system.signals import EVERY_SIGNAL, delayed

# Seconds that a worker gets to finish the batch in hand. Nobody will see that batch, but the
# dataset may hold a lock or be writing to a file. torch's loader waits as long.
_GRACE = 5.0


class _Leaver(NamedTuple):
    deadline: float
    reads: int  # the id of its dataset


_started: set[BaseProcess] = set()  # every worker of this process that may be alive
_leaving: dict[BaseProcess, _Leaver] = {}  # workers that were told to end, oldest first
_owner: int | None = None


def has_ended(process: BaseProcess, seconds: float = 0.0) -> bool:
    """Tell whether a worker has ended, within some seconds, and collect its exit status.

    Signals wait meanwhile: an interrupt between the system call and its result would lose the
    status. The worker would then seem to live for ever, and its pid would be sent signals although
    another process may have it by then.
    """
    with delayed(EVERY_SIGNAL):
        if seconds:
            process.join(seconds)
        return not process.is_alive()


def kill_at_exit(process: BaseProcess) -> None:
    """Remember a worker that was started, to kill it at exit."""
    global _owner  # noqa: PLW0603  a fork inherits the sets, not the workers
    if os.getpid() != _owner:
        _owner = os.getpid()
        _started.clear()
        _leaving.clear()
        # Not by atexit: processes of multiprocessing run only these, and before they wait for
        # their children.
        Finalize(None, _at_exit, exitpriority=100)
        if _at_collection not in gc.callbacks:
            gc.callbacks.append(_at_collection)
    _started.add(process)


def forget(process: BaseProcess) -> None:
    """Forget a worker that has ended and whose exit status was collected."""
    _started.discard(process)
    _leaving.pop(process, None)


def let_leave(process: BaseProcess, *, reads: int, at_once: bool = False) -> None:
    """Look after a worker that was told to end, until it has ended. Kill it if `at_once`."""
    _leaving[process] = _Leaver(time.monotonic() + (0 if at_once else _GRACE), reads)
    # Another thread may have parted with it by now, or a fork server has just collected it.
    with contextlib.suppress(ValueError, AttributeError, ProcessLookupError):
        if process.pid and not has_ended(process):
            os.kill(process.pid, signal.SIGKILL if at_once else signal.SIGALRM)


def end_soon(*_: object) -> None:
    """Handle SIGALRM in a worker: the next SIGALRM, after the grace time, kills it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _GRACE)


def look_after_leavers() -> None:
    """Collect workers that have ended, and kill those that are late. Waits for none."""
    if not _leaving or os.getpid() != _owner:
        return
    now = time.monotonic()
    # Keys alone: making tuples of keys and values may start the garbage collector, which looks
    # after leavers itself.
    for process in list(_leaving):
        leaver = _leaving.get(process)
        if leaver is None:
            continue
        # Another thread, or garbage collected just now, may have parted with it meanwhile.
        with contextlib.suppress(ValueError, AttributeError):
            if has_ended(process):
                _part_with(process)
            elif now >= leaver.deadline:
                process.kill()


def _part_with(process: BaseProcess) -> None:
    """Forget a worker that has left, and close its descriptors.

    Left to its finalizer, an interrupt there would be swallowed, and they would stay open.
    """
    with delayed(EVERY_SIGNAL):
        forget(process)
        process.close()


def limit_leavers(most: int, *, reads: int) -> None:
    """Kill the oldest leaving workers if more than `most` of them read the same dataset."""
    look_after_leavers()
    leaving = [(process, _leaving.get(process)) for process in list(_leaving)]
    same = [process for process, leaver in leaving if leaver is not None and leaver.reads == reads]
    for process in same[: max(len(same) - most, 0)]:
        with contextlib.suppress(ValueError, AttributeError):  # as above
            process.kill()


def await_leavers(processes: Iterable[BaseProcess], seconds: float) -> None:
    """Wait a moment for leaving workers that have no batch in hand."""
    deadline = time.monotonic() + seconds
    # Signals wait as long: interrupted halfway, it would leave descriptors open.
    with delayed(EVERY_SIGNAL), contextlib.ExitStack() as opened:
        poll, left = select.poll(), 0
        for process in processes:
            with contextlib.suppress(ValueError, AttributeError):  # as above
                if process in _leaving and process.is_alive():
                    sentinel, watched = process.sentinel, watch(process)
                    if watched != sentinel:
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
    """Return a descriptor that becomes readable when a process has ended."""
    # Not multiprocessing's pipe: a process that was forked at that moment keeps its other end, and
    # a fork server that dies closes it while the worker lives.
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # an old kernel
            return os.pidfd_open(process.pid or 0)
    return process.sentinel


def _at_collection(phase: str, _: dict[str, Any]) -> None:
    if _leaving and phase == "stop":
        look_after_leavers()


def _at_exit() -> None:
    """Kill all workers, which hold nothing that is needed, so that exit need not wait."""
    for process in tuple(_started):
        process.kill()
