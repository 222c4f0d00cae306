"""A worker process: takes the next issue, fetches its batch into its slot, replies.

A worker holds nothing that others need. Killed at any instruction, it leaves a slot that the
parent takes back and a task that the parent issues again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dataporter.engine.arena import Slot, Writer
from dataporter.engine.wire import (
    BATCH,
    ERROR,
    ISSUE,
    PARTIAL,
    REPLY,
    STOP,
    TIMED,
    UNREADY,
    pack_error,
    read_task,
    write_batch,
)
from dataporter.engine.worker_shutdown import end_soon
from dataporter.fetch import EMPTY, Fetches, Partial
from dataporter.fetch.generators import seed_all
from dataporter.fetch.tasks import Payload
from dataporter.fetch.timing import WRITE
from dataporter.fetch.worker_info import announce_worker
from dataporter.system.memory import libc
from dataporter.system.processes import die_with
from dataporter.system.signals import IGNORED

# Options of glibc's malloc and their values, for `mallopt`.
_MALLOC = {
    -3: 2**25,  # M_MMAP_THRESHOLD, the largest that it takes; larger pieces go back when freed
    -1: 2**28,  # M_TRIM_THRESHOLD: free memory above which some is given back
    -2: 2**24,  # M_TOP_PAD: how much is asked for at a time
}

IN_HAND = 0  # the slot where each worker notes the number of the issue that it has in hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The descriptors that connect a worker with its parent."""

    arena: int
    issues: int  # read end; the worker's own, or shared by all: a free worker takes the next
    replies: int  # write end, shared by all workers

    def __iter__(self) -> Any:
        return iter((self.arena, self.issues, self.replies))


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """Everything that a worker needs to fetch batches."""

    worker: int
    num_workers: int
    seed: int
    fetch: Fetches
    dataset: Any
    init: Callable[[int], None] | None


def work(worker: int, receive: Callable[[], Duty], wiring: Wiring, parent: int | None) -> None:
    """Work until the parent says stop, closes its end of the pipe, or dies.

    `receive` returns the duty, or raises the reason why it cannot be rebuilt. `parent` is the
    process to die with; None if only the end of the pipe tells of its death.
    """
    _detach(parent)
    slots: dict[int, Slot] = {}
    in_hand = Slot(wiring.arena, IN_HAND).reach(8 * (worker + 1)).cast("Q")
    in_hand[worker] = 0
    duty = begun(worker, receive)
    run = -1
    while message := os.read(wiring.issues, ISSUE.size):
        issue, number, size = ISSUE.unpack(message)
        if issue == STOP:
            return
        in_hand[worker] = issue
        slot = slots.get(number) or slots.setdefault(number, Slot(wiring.arena, number))
        try:
            if isinstance(duty, bytes):
                outcome, (offset, length) = write_error(slot, UNREADY, duty)
            else:
                found, payload = read_task(slot, size)
                if found != run:
                    run = found
                    duty.fetch.begin_pass()
                outcome, (offset, length) = make(duty, slot, payload)
        except Exception as error:  # noqa: BLE001  the parent raises it
            outcome, (offset, length) = write_error(slot, ERROR, pack_error(error, worker))
        try:
            os.write(wiring.replies, REPLY.pack(issue, number, outcome, offset, length))
        except BrokenPipeError:
            return  # the parent has closed the engine and waits for no reply
        in_hand[worker] = 0


def begun(worker: int, receive: Callable[[], Duty]) -> Duty | bytes:
    """Receive the duty and get ready for it. Returns the packed error if that fails."""
    try:
        duty = receive()
        _keep_freed_memory()
        torch.set_num_threads(1)
        seed_all(duty.seed)
        announce_worker(worker, duty.num_workers, duty.seed, duty.dataset)
    except Exception as error:  # noqa: BLE001  the parent raises it
        return pack_error(error, worker)
    try:
        if duty.init is not None:
            duty.init(worker)
    except Exception as error:  # noqa: BLE001  likewise
        return pack_error(error, worker, "worker_init_fn failed. ")
    return duty


def make(duty: Duty, slot: Slot, payload: Payload) -> tuple[int, tuple[int, int]]:
    """Make a batch in its slot. Returns the outcome, and offset and size in the slot."""
    writer, timing = Writer(slot), duty.fetch.timing
    if timing is not None:
        timing.begin()
    batch = duty.fetch(payload, writer.empty)
    outcome = BATCH
    if type(batch) is Partial:
        is_empty = batch.batch is EMPTY
        # None in place of an empty list or batch: such a result needs no pickle.
        made, skipped = None if is_empty else batch.batch, batch.skipped or None
        outcome, batch = PARTIAL, (is_empty, made, batch.left_out, skipped)
    where = write_batch(writer, batch)
    if timing is not None:
        timing.end(WRITE)
        if packed := timing.packed(duty.worker, *where):
            return outcome + TIMED, (writer.write(packed), len(packed))
    return outcome, where


def _detach(parent: int | None) -> None:
    """Ignore signals to the process group, and die with the parent."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, end_soon)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*IGNORED, signal.SIGALRM})
    if parent is not None:
        die_with(parent)


def _keep_freed_memory() -> None:
    """Let malloc keep the memory of one batch's samples for the next batch.

    Otherwise malloc gives the memory back to the system after each batch, and the system zeroes
    every page that it hands out again: a third of a worker's time if samples are images. If the
    user has set up malloc by environment variables, nothing is changed.
    """
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None or any(name.startswith(("MALLOC_", "GLIBC_T")) for name in os.environ):
        return
    for option, value in _MALLOC.items():
        mallopt(option, value)


def write_error(slot: Slot, outcome: int, packed: bytes) -> tuple[int, tuple[int, int]]:
    """Leave a packed error in a slot. Returns the outcome, and offset and size."""
    slot.reach(len(packed))[: len(packed)] = packed
    return outcome, (0, len(packed))
