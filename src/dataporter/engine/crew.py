"""The crew: the worker processes of an engine, how they are started, lost and let go."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from dataporter.engine.arena import Slot
from dataporter.engine.worker import IGNORED, Duty, Fetches, Wiring, work
from dataporter.errors import OptionError, WorkerDiedError, WorkerRestartWarning
from dataporter.libc import libc
from dataporter.tasks import Task

BOARD = 0  # the slot in which every worker notes the number of the issue it has in hand


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How many workers (at most, if `adapts`), and how they are run."""

    num_workers: int
    adapts: bool = False
    prefetch_factor: int = 2
    timeout: float = 0
    init: Callable[[int], None] | None = None
    context: Any = None
    max_restarts: int = 3
    seed: int = 0
    dataset: Any = None
    pin_memory: bool = False
    copies_ahead: bool = False  # whether batches go on to a device, and no further as they are
    in_order: bool = True
    has_places: bool = False  # whether a task is for one worker, not for any


def can_start_workers() -> bool:
    """Whether this system has what workers and their parent meet by. Windows has not."""
    return libc is not None and hasattr(select, "poll")


class Crew:
    """The workers of one engine, by number. A place is None while it has no worker.

    `wanted` says how many there should be; `start` makes up for those that are missing.
    """

    def __init__(
        self,
        fetch: Fetches,
        options: WorkerOptions,
        wirings: Sequence[Wiring],
        poll: select.poll,
    ) -> None:
        self._fetch = fetch
        self._options = options
        self._wirings = wirings  # of each worker, or one for all
        self._poll = poll
        self._context: Any = options.context
        if not hasattr(options.context, "Process"):
            self._context = multiprocessing.get_context(options.context)
        self._workers: list[BaseProcess | None] = [None] * options.num_workers
        self.wanted = min(2, options.num_workers) if options.adapts else options.num_workers
        self._retiring = 0
        self._watched: dict[int, int] = {}  # by worker: the descriptor that tells of its death
        self._deaths = select.poll()
        self._board = Slot(wirings[0].arena, BOARD).reach(8 * options.num_workers).view(np.uint64)

    @property
    def size(self) -> int:
        """How many workers there are."""
        return sum(process is not None for process in self._workers)

    def start(self, inherited: Callable[[], set[int]]) -> None:
        """Start every worker that is missing; `inherited` is what a fork is to close."""
        for worker, process in enumerate(self._workers):
            if process is None and self.size - self._retiring < self.wanted:
                self._workers[worker] = self._started(worker, inherited)

    def retire_one(self) -> None:
        """Expect one worker less: somebody has been told to end."""
        self.wanted -= 1
        self._retiring += 1

    def _started(self, worker: int, inherited: Callable[[], set[int]]) -> BaseProcess:
        options, method = self._options, self._context.get_start_method()
        duty = Duty(
            worker=worker,
            num_workers=options.num_workers,
            seed=options.seed,
            fetch=self._fetch,
            dataset=options.dataset,
            init=options.init,
        )
        wiring = self._wirings[worker % len(self._wirings)]
        # The system's signal of a parent's death is that of the thread which forked.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
        target: Callable[..., None] = _work_sent
        arguments: tuple[Any, ...] = (duty, _Sent(wiring), parent)
        if method == "fork":
            target, arguments = _work_forked, (duty, wiring, parent, inherited)
        process: BaseProcess = self._context.Process(
            target=target, args=arguments, name=f"dataporter worker {worker}", daemon=True
        )
        self._board[worker] = 0
        if method == "forkserver":
            _preload()
        try:
            with _undisturbed() if method == "fork" else contextlib.nullcontext():
                process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            msg = (
                f"the dataset or a function beside it cannot be sent to a worker started by "
                f"{method!r}: {error}. Define it at the top level of a module, or use "
                "multiprocessing_context='fork'."
            )
            raise OptionError(msg) from error
        self._watched[worker] = watched = _watch(process)
        for poll in (self._poll, self._deaths):
            poll.register(watched, select.POLLIN)
        _remember(process)
        return process

    def dead(self) -> list[int]:
        """Numbers of workers that have ended without having been told to."""
        ended = {descriptor for descriptor, _ in self._deaths.poll(0)}
        dead = []
        for worker in [w for w, watched in self._watched.items() if watched in ended]:
            process = self._workers[worker]
            if self._retiring and process is not None and _ended_well(process):
                self._retiring -= 1
                self.dismissed(worker)
            else:
                dead.append(worker)
        return dead

    def dismissed(self, worker: int) -> BaseProcess:
        """Take a dead worker off its place."""
        process = self._workers[worker]
        if process is None:
            msg = f"worker {worker} was never started"
            raise RuntimeError(msg)
        watched = self._watched.pop(worker)
        for poll in (self._poll, self._deaths):
            poll.unregister(watched)
        if watched != process.sentinel:
            os.close(watched)
        process.join(1)  # its status may come a moment later
        self._workers[worker] = None
        _started.discard(process)  # another crew that left may have cleared up after it
        return process

    def has(self, worker: int) -> int:
        """The number of the issue that a worker has, or last had, in hand; 0 for none."""
        return int(self._board[worker])

    def in_hand(self, but_not: list[int]) -> set[int]:
        """The numbers of the issues that workers have in hand."""
        workers = (w for w, process in enumerate(self._workers) if process is not None)
        return {self.has(worker) for worker in workers if worker not in but_not}

    def who_has(self, issue: int, patience: float) -> str:
        """Say why a batch is late."""
        # The words that torch's loader uses, for those who look for them.
        late = f"DataLoader timed out after {patience:g} seconds (timeout={patience:g})"
        for worker, process in enumerate(self._workers):
            if process is not None and self.has(worker) == issue:
                return (
                    f"{late}: worker {worker} (pid {process.pid}) is still fetching it. Find out "
                    "what it waits for, or give it a longer timeout."
                )
        return f"{late}: no worker has begun it yet. Use more workers or a longer timeout."

    def leave(self) -> None:
        """Forget the workers, who have been told to end."""
        for worker, watched in self._watched.items():
            process = self._workers[worker]
            if process is not None and watched != process.sentinel:
                os.close(watched)
        self._watched.clear()
        for process in tuple(_started):
            if not process.is_alive():  # this also collects the exit status
                _started.discard(process)


class Losses:
    """Counts the workers that died in one run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    def note(self, process: BaseProcess, worker: int, task: Task | None) -> None:
        """Warn of a dead worker, or raise if there were too many."""
        self._count += 1
        status = process.exitcode or 0
        how = f"ended with status {status}"
        if status < 0:  # the words that torch's loader uses, for those who look for them
            how = f"is killed by signal: {_name_of(-status)}"
        when = "between two batches"
        if task is not None:
            when = f"while fetching batch {task.progress.batches_processed} of the epoch"
        what = f"DataLoader worker (pid {process.pid}) {how}; it was worker {worker}, {when}"
        if self._count > self._most:
            msg = (
                f"{what}; {self._count} workers have died in this pass, at most {self._most} are "
                "replaced (max_restarts). If the system ran out of memory, use fewer workers or "
                "smaller batches; if the dataset crashes, num_workers=0 shows where."
            )
            raise WorkerDiedError(msg)
        msg = f"{what}. It is replaced, and its batch fetched again: the data does not change."
        warnings.warn(msg, WorkerRestartWarning, stacklevel=7)


class _Sent:
    """Descriptors on their way into a process that does not inherit them."""

    def __init__(self, wiring: Wiring) -> None:
        self._descriptors = tuple(wiring)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415  Windows has none

        return _received, tuple(DupFd(descriptor) for descriptor in self._descriptors)


def _received(arena: Any, issues: Any, replies: Any) -> Wiring:
    return Wiring(arena=arena.detach(), issues=issues.detach(), replies=replies.detach())


def _work_forked(
    duty: Duty, wiring: Wiring, parent: int | None, inherited: Callable[[], set[int]]
) -> None:
    # A pipe ends when nobody holds its other end: what is inherited and not ours is closed.
    for descriptor in inherited() - set(wiring):
        os.close(descriptor)
    # Hugging Face's tokenizers would wait for threads that a fork does not have.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    work(duty, wiring, parent)


def _work_sent(duty: Duty, wiring: Wiring, parent: int | None) -> None:
    # Under a fork server the parent is that server; the pipe's end tells of the other.
    work(duty, wiring, parent if parent == os.getppid() else None)


def _preload() -> None:
    """Have the fork server import what all workers need, unless it runs already.

    Otherwise each of them would import torch anew. What the user has it import stays.
    """
    from multiprocessing import forkserver  # noqa: PLC0415  not on every system

    server = getattr(forkserver, "_forkserver", None)  # which has no public name
    modules = getattr(server, "_preload_modules", None)
    if modules is None or getattr(server, "_forkserver_pid", None) is not None:
        return
    if work.__module__ not in modules:
        multiprocessing.set_forkserver_preload([*modules, work.__module__])


def _watch(process: BaseProcess) -> int:
    """A descriptor that is ready when a process has ended."""
    # Not multiprocessing's own: a process that was forked at that moment keeps the pipe's
    # other end, and a fork server that dies closes it, whatever becomes of the worker.
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # an old kernel
            return os.pidfd_open(process.pid or 0)
    return process.sentinel


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep what may end a run from a child until it has learnt to ignore it.

    Until then it would run the handlers of its parent.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ended_well(process: BaseProcess) -> bool:
    process.join(1)  # its status may come a moment later
    return process.exitcode == 0


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Every worker of this process that is not known to have ended.
_started: set[BaseProcess] = set()
_owner: int | None = None


def _remember(process: BaseProcess) -> None:
    global _owner  # noqa: PLW0603  a fork inherits the list, not the workers
    if os.getpid() != _owner:
        _owner = os.getpid()
        _started.clear()
        # By multiprocessing's own way, which its processes take as well, and before it
        # waits for its children.
        Finalize(None, _at_exit, exitpriority=100)
    _started.add(process)


def _at_exit() -> None:
    """Leave the interpreter at once: workers hold nothing."""
    for process in tuple(_started):
        process.kill()
