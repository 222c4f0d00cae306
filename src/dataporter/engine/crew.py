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
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

from dataporter.engine.arena import Slot
from dataporter.engine.leaving import (
    await_leavers,
    forget,
    limit_leavers,
    look_after_leavers,
    remember,
    see_off,
    watch,
)
from dataporter.engine.libc import libc
from dataporter.engine.worker import IGNORED, Duty, Wiring, work
from dataporter.errors import (
    OptionError,
    WorkerDiedError,
    WorkerRestartWarning,
    WorkerStartError,
)
from dataporter.fetch import Fetches
from dataporter.fetch.tasks import Task

BOARD = 0  # the slot in which every worker notes the number of the issue it has in hand
_STARTING = 2**64 - 1  # on the board until a worker can tell what goes wrong
_PYTHON_FAILED = 1  # the exit status of a process that an exception has ended


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
        self.is_late = False  # the batch that is waited for, by more than the timeout
        self._watched: dict[int, int] = {}  # by worker: the descriptor that tells of its death
        self._deaths = select.poll()
        self._board = Slot(wirings[0].arena, BOARD).reach(8 * options.num_workers).view(np.uint64)

    @property
    def size(self) -> int:
        """How many workers there are."""
        return sum(process is not None for process in self._workers)

    def start(self, inherited: Callable[[], set[int]]) -> None:
        """Start every worker that is missing; `inherited` is what a fork is to close."""
        limit_leavers(self._options.num_workers, reads=id(self._options.dataset))
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
        arguments: tuple[Any, ...] = (worker, _SentDuty(duty, method), _Sent(wiring), parent)
        if method == "fork":
            target, arguments = _work_forked, (duty, wiring, parent, inherited)
        process: BaseProcess = self._context.Process(
            target=target, args=arguments, name=f"dataporter worker {worker}", daemon=True
        )
        self._board[worker] = _STARTING
        if method == "forkserver":
            _preload()
        try:
            # A child is to learn what to do about these before it would run its parent's handlers.
            late = {*IGNORED, signal.SIGALRM}
            with undisturbed(late) if method == "fork" else contextlib.nullcontext():
                process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            msg = (
                f"the dataset or a function beside it cannot be sent to a worker started by "
                f"{method!r}: {error}. Define it at the top level of a module, or use "
                "multiprocessing_context='fork'."
            )
            raise OptionError(msg) from error
        self._watched[worker] = watched = watch(process)
        for poll in (self._poll, self._deaths):
            poll.register(watched, select.POLLIN)
        remember(process)
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
        if process.is_alive():
            see_off(process, reads=id(self._options.dataset), at_once=True)
        else:
            forget(process)
        return process

    def kill(self, worker: int) -> None:
        """End a worker that hangs; then it is among the dead."""
        process = self._workers[worker]
        if process is not None:
            process.kill()
            process.join(1)

    def has_begun(self, worker: int) -> bool:
        """Whether a worker has, or last had, come so far that it could tell what goes wrong."""
        return int(self._board[worker]) != _STARTING

    def has(self, worker: int) -> int:
        """The number of the issue that a worker has, or last had, in hand; 0 for none."""
        return int(self._board[worker]) if self.has_begun(worker) else 0

    def having(self, issues: Container[int]) -> list[int]:
        """The numbers of workers that have one of these issues in hand."""
        workers = (w for w, process in enumerate(self._workers) if process is not None)
        return [worker for worker in workers if self.has(worker) in issues]

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
                    f"{late}: worker {worker} (pid {process.pid}) is still fetching it. Call "
                    "next() on this iterator again to wait on for it, find out what it waits "
                    "for, or use a longer timeout."
                )
        return (
            f"{late}: no worker has begun it yet. Call next() on this iterator again to wait on "
            "for it, or use more workers or a longer timeout."
        )

    def leave(self) -> None:
        """See the workers off, who have been told to end."""
        for worker, watched in self._watched.items():
            process = self._workers[worker]
            if process is not None and watched != process.sentinel:
                os.close(watched)
        self._watched.clear()
        for worker, process in enumerate(self._workers):
            if process is not None:
                hangs = self.is_late and self.has(worker) != 0
                see_off(process, reads=id(self._options.dataset), at_once=hangs)
        look_after_leavers()

    def await_end(self, seconds: float) -> None:
        """Wait a moment for workers that have left with nothing in hand."""
        workers = enumerate(self._workers)
        idle = [process for w, process in workers if process is not None and not self.has(w)]
        await_leavers(idle, seconds)


class Loss(NamedTuple):
    """A worker that died, and the task that it had."""

    process: BaseProcess
    worker: int
    task: Task | None
    has_begun: bool


class Losses:
    """Decides whether workers that died are replaced: as long as the run makes progress.

    `most` workers are, of those that die of the same task, and of those that die one after another
    with nothing delivered in between.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_task: dict[int, int] = {}  # deaths by the number of the batch in hand
        self._in_a_row = 0  # deaths with nothing delivered in between
        self._delivered = 0  # batches since deaths were last noticed

    def begin_run(self) -> None:
        """Forget the tasks of the run before, not that it made progress or none."""
        self._of_task.clear()

    def note_delivery(self, task: Task) -> None:
        """Take note of progress."""
        self._delivered += 1
        if self._of_task:
            self._of_task.pop(task.number, None)

    def note(self, lost: Sequence[Loss], awaited: Task) -> None:
        """Warn of dead workers, or raise if the run makes no progress."""
        # Deaths are noticed when somebody has to wait: those of workers that were idle may have
        # come one by one, with batches that had been fetched ahead delivered in between.
        delivered, self._delivered = self._delivered, 0
        for number, loss in enumerate(lost):
            self._in_a_row = 1 if 0 < delivered >= number else self._in_a_row + 1
            what = _described(loss)
            if loss.process.exitcode == _PYTHON_FAILED and not loss.has_begun:
                msg = f"{what}. {_WHY_NOT_STARTED}"
                raise WorkerStartError(msg)
            why = self._why_not_replaced(loss.task, awaited)
            if why:
                msg = (
                    f"{what}. {why}, at most {self._most} are replaced (max_restarts). If the "
                    "system ran out of memory, use fewer workers or smaller batches; if the "
                    "dataset crashes, num_workers=0 shows where."
                )
                self._in_a_row = 0  # who tries again may lose as many
                raise WorkerDiedError(msg)
            msg = f"{what}. It is replaced, and its batch fetched again: the data does not change."
            warnings.warn(msg, WorkerRestartWarning, stacklevel=7)

    def _why_not_replaced(self, task: Task | None, awaited: Task) -> str:
        """Say why a run ends that has lost one more worker, at this task; empty if it goes on."""
        if task is not None:
            number = task.number
            deaths = self._of_task[number] = self._of_task.get(number, 0) + 1
            if deaths > self._most:
                return f"{deaths} workers have died while fetching this batch"
        if self._in_a_row > self._most:
            return (
                f"{self._in_a_row} workers have died with no batch delivered in between, while "
                f"{awaited} was waited for"
            )
        return ""


_WHY_NOT_STARTED = (
    "It could not start, and wrote the reason to stderr. A worker that is not forked imports the "
    "main script first: keep that importable, with whatever iterates a loader under "
    "`if __name__ == '__main__':`, or use multiprocessing_context='fork'."
)


def _described(loss: Loss) -> str:
    status = loss.process.exitcode or 0
    how = f"ended with status {status}"
    if status < 0:  # the words that torch's loader uses, for those who look for them
        how = f"is killed by signal: {_name_of(-status)}"
    when = "between two batches" if loss.has_begun else "before its first batch"
    if loss.task is not None:
        when = f"while fetching {loss.task}"
    return f"DataLoader worker (pid {loss.process.pid}) {how}; it was worker {loss.worker}, {when}"


class _Sent:
    """Descriptors on their way into a process that does not inherit them."""

    def __init__(self, wiring: Wiring) -> None:
        self._descriptors = tuple(wiring)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415  Windows has none

        return _received, tuple(DupFd(descriptor) for descriptor in self._descriptors)


def _received(arena: Any, issues: Any, replies: Any) -> Wiring:
    return Wiring(arena=arena.detach(), issues=issues.detach(), replies=replies.detach())


class _SentDuty:
    """A duty on its way into a process that does not inherit it."""

    def __init__(self, duty: Duty, method: str) -> None:
        self._duty = duty
        self._method = method

    def __reduce__(self) -> tuple[Any, ...]:
        # Packed apart, so that it is unpacked by a worker that can tell what goes wrong.
        return _ReceivedDuty, (bytes(ForkingPickler.dumps(self._duty)), self._method)


class _ReceivedDuty:
    """A duty as it arrived, to be unpacked."""

    def __init__(self, packed: bytes, method: str) -> None:
        self._packed = packed
        self._method = method

    def __call__(self) -> Duty:
        try:
            duty: Duty = pickle.loads(self._packed)  # noqa: S301  from the parent process
        except Exception as error:
            msg = (
                f"a worker started by {self._method!r} cannot rebuild the dataset or a function "
                f"beside it: {type(error).__name__}: {error}. Define it at the top level of a "
                "module that can be imported (not in a notebook), or use "
                "multiprocessing_context='fork'."
            )
            raise WorkerStartError(msg) from error
        return duty


def _work_forked(
    duty: Duty, wiring: Wiring, parent: int | None, inherited: Callable[[], set[int]]
) -> None:
    # A pipe ends when nobody holds its other end: what is inherited and not ours is closed.
    for descriptor in inherited() - set(wiring):
        os.close(descriptor)
    # Hugging Face's tokenizers would wait for threads that a fork does not have.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    work(duty.worker, lambda: duty, wiring, parent)


def _work_sent(
    worker: int, receive: Callable[[], Duty], wiring: Wiring, parent: int | None
) -> None:
    # Under a fork server the parent is that server; the pipe's end tells of the other.
    work(worker, receive, wiring, parent if parent == os.getppid() else None)


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


@contextlib.contextmanager
def undisturbed(signals: Iterable[int]) -> Iterator[None]:
    """Have signals wait until something is done, which a handler of theirs would break off."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # may raise what came just before
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
