"""The slots of an engine: which are free, which the consumer holds, which a device reads.

A slot is free again when no array or tensor over it lives. If it is page-locked, a device may
still be copying out of it then: it is used again once a mark that was taken afterwards has
passed. Marks are taken for a few slots together, since each costs as much as a small copy.
Nobody waits for one, unless more slots than are kept free wait for devices.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.engine.arena import Slot
from dataporter.engine.marks import Mark, mark, note_stream


class Slots:
    """Slots of one arena, by number from 1 on."""

    def __init__(self, arena: int) -> None:
        self._arena = arena
        self._all: dict[int, Slot] = {}
        self._free: deque[int] = deque()
        self._bare: deque[int] = deque()  # free as well, their memory given back
        self._held: dict[int, weakref.ref[Any]] = {}  # of batches that the consumer has
        self._dropped: deque[int] = deque()  # let go of by the consumer, maybe read by a device
        self._read: deque[tuple[Mark, list[int]]] = deque()  # free once the mark has passed
        self._waiting = 0  # slots in `_read`
        self.keep = 1  # how many stay free with their memory
        self.most_read = 1  # how many devices may be reading before the host waits for them
        self.together = 1  # how many share a mark

    def __getitem__(self, number: int) -> Slot:
        return self._all[number]

    @property
    def held(self) -> int:
        """How many the consumer has."""
        return len(self._held)

    def take(self) -> Slot:
        """Take a slot that nobody uses, a new one if there is none."""
        if len(self._dropped) >= self.together or (self._read and not self._free):
            self._look()
        free = self._free or self._bare
        number = free.pop() if free else len(self._all) + 1
        return self._all.get(number) or self._all.setdefault(number, Slot(self._arena, number))

    def free(self, number: int) -> None:
        """Give a slot back that was not lent."""
        self._free.append(number)

    def lend(self, slot: Slot, size: int) -> NDArray[np.uint8]:
        """An array over a slot, which is given back when the array and its views have died."""
        memory = slot.fresh(size)
        back: Callable[[Any], None]
        if slot.lock is None:
            back = _Free(self._held, self._free, self._bare, slot, self.keep)
        else:
            back = _Drop(self._held, self._dropped, slot.number)
        self._held[slot.number] = weakref.ref(memory, back)
        return memory

    def _look(self) -> None:
        """Free what no device reads any more."""
        while self._read and self._read[0][0].passed():
            self._free_oldest()
        if len(self._dropped) < self.together:
            return
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        taken = mark()
        if taken is None:
            self._dropped.extend(dropped)
            return
        self._read.append((taken, dropped))
        self._waiting += len(dropped)
        while self._waiting > self.most_read:
            self._read[0][0].wait()
            self._free_oldest()

    def _free_oldest(self) -> None:
        _, numbers = self._read.popleft()
        self._waiting -= len(numbers)
        for number in numbers:
            _put_back(self._all[number], self._free, self._bare, self.keep)


def _put_back(slot: Slot, free: deque[int], bare: deque[int], keep: int) -> None:
    if len(free) < keep:
        free.append(slot.number)
    else:
        slot.forget()
        bare.append(slot.number)


class _Free:
    """Frees a slot when what lay over it has died; its memory too, if `keep` are free already."""

    __slots__ = ("_bare", "_free", "_held", "_keep", "_slot")

    def __init__(
        self, held: dict[int, Any], free: deque[int], bare: deque[int], slot: Slot, keep: int
    ) -> None:
        self._held, self._free, self._bare, self._slot, self._keep = held, free, bare, slot, keep

    def __call__(self, _: object) -> None:
        del self._held[self._slot.number]
        _put_back(self._slot, self._free, self._bare, self._keep)


class _Drop:
    """Puts a slot aside when what lay over it has died: a device may still read it."""

    __slots__ = ("_dropped", "_held", "_number")

    def __init__(self, held: dict[int, Any], dropped: deque[int], number: int) -> None:
        self._held, self._dropped, self._number = held, dropped, number

    def __call__(self, _: object) -> None:
        note_stream()
        del self._held[self._number]
        self._dropped.append(self._number)
