"""A worker process: takes the next issue, fetches its batch into its slot, replies.

It holds nothing that anybody needs. Killed at any instruction, it leaves a slot that the
parent takes back and a task that the parent issues again.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dataporter.engine.arena import Slot, Writer
from dataporter.engine.child_processes import die_with
from dataporter.engine.leaving import end_soon
from dataporter.engine.libc import libc
from dataporter.engine.wire import (
    BATCH,
    ERROR,
    ISSUE,
    PARTIAL,
    REPLY,
    STOP,
    TIMED,
    UNREADY,
    read_task,
    write_batch,
    write_bytes,
)
from dataporter.fetch import EMPTY, Fetches, Skipped
from dataporter.fetch.generators import seed_all
from dataporter.fetch.tasks import Payload
from dataporter.fetch.timing import WRITE
from dataporter.fetch.worker_info import announce_worker

# glibc's `mallopt`: options of malloc and what they are set to.
_MALLOC = {
    -3: 2**25,  # M_MMAP_THRESHOLD, the largest that it takes
    -1: 2**28,  # M_TRIM_THRESHOLD: free memory above which some is given back
    -2: 2**24,  # M_TOP_PAD: how much is asked for at a time
}

# The parent decides when a run ends; a terminal's Ctrl-C goes to all of the group, and so do
# the signals by which schedulers announce that time is up. Windows has only two of them.
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
IGNORED = tuple(getattr(signal, name) for name in _IGNORED if hasattr(signal, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The descriptors that connect a worker with its parent."""

    arena: int
    issues: int  # read end, shared by all workers (whoever is free takes the next) or its own
    replies: int  # write end, shared likewise

    def __iter__(self) -> Any:
        return iter((self.arena, self.issues, self.replies))


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What a worker is to do."""

    worker: int
    num_workers: int
    seed: int
    fetch: Fetches
    dataset: Any
    init: Callable[[int], None] | None


class WorkerTraceback(Exception):  # noqa: N818  never raised: the cause of what is raised
    """Where in which worker an error happened; the cause of the error that arrives."""

    def __str__(self) -> str:
        return "\n" + "".join(self.args)


def work(worker: int, receive: Callable[[], Duty], wiring: Wiring, parent: int | None) -> None:
    """Work until the parent says stop, closes its end of the pipe, or dies.

    `receive` returns what is to be done, or raises why that cannot be known. `parent` is the
    process to die with; None where the pipe alone must do.
    """
    _detach(parent)
    slots: dict[int, Slot] = {}
    skipped: list[Skipped] = []  # by the task in hand
    board = Slot(wiring.arena, 0).reach(8 * (worker + 1)).view(np.uint64)
    board[worker] = 0
    duty = _begun(worker, receive)
    if isinstance(duty, Duty):
        duty.fetch.report_to(skipped.append)
    run = -1
    while message := os.read(wiring.issues, ISSUE.size):
        issue, number, size = ISSUE.unpack(message)
        if issue == STOP:
            return
        board[worker] = issue
        slot = slots.get(number) or slots.setdefault(number, Slot(wiring.arena, number))
        try:
            if isinstance(duty, bytes):
                outcome, (offset, length) = _write_error(slot, UNREADY, duty)
            else:
                found, payload = read_task(slot, size)
                if found != run:
                    run = found
                    duty.fetch.begin_pass()
                outcome, (offset, length) = _make(duty, slot, skipped, payload)
        except Exception as error:  # noqa: BLE001  it is the parent's to raise
            outcome, (offset, length) = _write_error(slot, ERROR, _packed(error, worker))
        try:
            os.write(wiring.replies, REPLY.pack(issue, number, outcome, offset, length))
        except BrokenPipeError:
            return  # the parent has closed the engine and waits for no reply
        board[worker] = 0


def _begun(worker: int, receive: Callable[[], Duty]) -> Duty | bytes:
    """Learn what to do and get ready for it; the error, packed, where that is not possible."""
    try:
        duty = receive()
        _keep_freed_memory()
        torch.set_num_threads(1)
        seed_all(duty.seed)
        announce_worker(worker, duty.num_workers, duty.seed, duty.dataset)
    except Exception as error:  # noqa: BLE001  it is the parent's to raise
        return _packed(error, worker)
    try:
        if duty.init is not None:
            duty.init(worker)
    except Exception as error:  # noqa: BLE001  likewise
        return _packed(error, worker, "worker_init_fn failed. ")
    return duty


def _make(
    duty: Duty,
    slot: Slot,
    skipped: list[Skipped],
    payload: Payload,
) -> tuple[int, tuple[int, int]]:
    """Make a batch in its slot; what came of it, and where in the slot that is."""
    skipped.clear()
    writer, timing = Writer(slot), duty.fetch.timing
    if timing is not None:
        timing.begin()
    batch = duty.fetch(payload, writer.empty)
    outcome = BATCH
    if skipped:
        outcome, batch = PARTIAL, (batch is EMPTY, batch, skipped)
    where = write_batch(writer, batch)
    if timing is not None:
        timing.end(WRITE)
        if packed := timing.packed(duty.worker, *where):
            return outcome + TIMED, write_bytes(writer, packed)
    return outcome, where


def _detach(parent: int | None) -> None:
    """Make this process one that lives and dies with its parent alone."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, end_soon)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*IGNORED, signal.SIGALRM})
    if parent is not None:
        die_with(parent)


def _keep_freed_memory() -> None:
    """Have malloc use the memory of one batch's samples for the next one's.

    Given back to the system after each batch, it would come back page by page, each to be
    zeroed: a third of a worker's time where samples are images. Who has set malloc up
    themselves is left alone.
    """
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None or any(name.startswith(("MALLOC_", "GLIBC_T")) for name in os.environ):
        return
    for option, value in _MALLOC.items():
        mallopt(option, value)


def _packed(error: Exception, worker: int, what: str = "") -> bytes:
    """An error as (pickle of it or None, its traceback as text)."""
    where = f"In worker {worker} (pid {os.getpid()}):\n"
    text = what + where + "".join(traceback.format_exception(error))
    return pickle.dumps((_rebuildable(error), type(error).__qualname__, text))


def _rebuildable(error: Exception) -> bytes | None:
    """The pickle of an error that comes back as it is, else None."""
    # Many classes cannot be made again from their args; then without their __init__.
    for way in (error, _WithoutInit(error)):
        try:
            pickled = pickle.dumps(way)
            again = pickle.loads(pickled)  # noqa: S301  our own, to see whether it can be rebuilt
            if type(again) is type(error) and str(again) == str(error):
                return pickled
        except Exception:  # noqa: BLE001, S112  whatever its class does when pickled or printed
            continue
    return None


class _WithoutInit:
    """Pickled in place of an error, comes back as that error: type, args and attributes."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self._error), self._error.args, vars(self._error))


def _remade(kind: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def _write_error(slot: Slot, outcome: int, packed: bytes) -> tuple[int, tuple[int, int]]:
    slot.reach(len(packed))[: len(packed)] = np.frombuffer(packed, np.uint8)
    return outcome, (0, len(packed))
