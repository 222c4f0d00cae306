"""Taking a result: a batch is rebuilt where it lies, in its slot, and page-locked if asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.engine.arena import Slot
from dataporter.engine.board import Issue
from dataporter.engine.budget import MOST_LENT
from dataporter.engine.interface import WorkerOptions
from dataporter.engine.page_locks import can_pin, pinned
from dataporter.engine.slots import Slots
from dataporter.engine.wire import BATCH, PARTIAL, read_batch, unpack_error
from dataporter.errors import PageLockWarning
from dataporter.fetch import EMPTY, Failed, Partial
from dataporter.fetch.tasks import Task
from dataporter.user_warnings import warn_user


class Taker:
    """Takes results out of their slots. A slot is free when the last part of its batch dies."""

    def __init__(self, options: WorkerOptions, slots: Slots) -> None:
        self._slots = slots
        self._copies_ahead = options.copies_ahead
        self._pins = options.pin_memory and can_pin()
        self._locks = self._pins and torch.cuda.is_available()

    def packed(self, issue: Issue[Task]) -> bytes:
        """Return the bytes of a reply. Its slot stays in use."""
        return _bytes_in(self._slots[issue.slot], issue.offset, issue.size)

    def rebuilt(self, slot: int, outcome: int, offset: int, size: int) -> Any:
        """Rebuild a batch, or the error in its place."""
        held = self._slots[slot]
        if outcome not in (BATCH, PARTIAL):
            packed = _bytes_in(held, offset, size)
            self._slots.free(slot)
            return Failed(unpack_error(packed))
        is_locked = False
        if self._slots.num_lent < MOST_LENT:
            is_locked = self._locks and self._page_lock(held, offset + size)
            memory = self._slots.lend(held, offset + size)
        else:
            memory = np.array(held.reach(offset + size)[: offset + size])
            self._slots.free(slot)
        batch = read_result(memory, outcome, offset, size)
        if not self._pins or type(batch) is Failed or (is_locked and self._copies_ahead):
            return batch
        return pinned(batch)  # of a locked slot, only the parts that do not lie in it

    def _page_lock(self, slot: Slot, size: int) -> bool:
        """Page-lock a slot in place. After one refusal no other slot is tried."""
        refused = slot.page_lock(size)
        if refused is None:
            return True
        self._locks = False
        msg = (
            f"{size:,} bytes of shared memory could not be page-locked ({refused}). Batches are "
            "copied into page-locked memory instead, which takes longer. Allow more locked "
            "memory (ulimit -l), or use fewer workers or a smaller prefetch_factor."
        )
        warn_user(msg, PageLockWarning)
        return False


def read_result(memory: NDArray[np.uint8], outcome: int, offset: int, size: int) -> Any:
    """Rebuild a batch over some memory."""
    try:
        batch = read_batch(memory, offset, size)
        if outcome == PARTIAL:
            is_empty, batch, left_out, skipped = batch
            batch = Partial(EMPTY if is_empty else batch, left_out, skipped or ())
    except Exception as error:  # noqa: BLE001  a class that is unknown here
        return Failed(error)
    return batch


def _bytes_in(slot: Slot, offset: int, size: int) -> bytes:
    return slot.reach(offset + size)[offset : offset + size].tobytes()
