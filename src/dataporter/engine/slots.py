"""The slots of an engine: which are free, which the consumer holds, which a device reads.

A slot is free again when no array or tensor over it lives. If it is page-locked, a device may
still be copying out of it then: it is used again once a mark that was taken afterwards has
passed. Marks are taken for a few slots together, since each costs as much as a small copy.
Nobody waits for one, unless more slots than are kept free wait for devices. What a forked
child of the user's may read is not used again before that child has ended (`forks`).
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.engine.arena import Slot
from dataporter.engine.forks import Child, watch_forks
from dataporter.engine.marks import Mark, mark, note_stream


class Slots:
    """Slots of one arena, by number from 1 on."""

    def __init__(self, arena: int) -> None:
        self._arena = arena
        self._all: dict[int, Slot] = {}
        self._pool = _Pool()
        self._dropped: deque[int] = deque()  # let go of by the consumer, maybe read by a device
        self._read: deque[tuple[Mark, list[int]]] = deque()  # free once the mark has passed
        self._waiting = 0  # slots in `_read`
        self.most_read = 1  # how many devices may be reading before the host waits for them
        self.together = 1  # how many share a mark

    def __getitem__(self, number: int) -> Slot:
        return self._all[number]

    @property
    def held(self) -> int:
        """How many the consumer has."""
        return len(self._pool.held)

    def keep(self, count: int) -> None:
        """Let so many stay free with their memory; what more there are gives it back."""
        self._pool.keep = count

    def take(self) -> Slot:
        """Take a slot that nobody uses, a new one if there is none."""
        pool = self._pool
        if len(self._dropped) >= self.together or (self._read and not pool.free):
            self._look()
        if pool.left and not pool.free:
            pool.look_at_children()
        free = pool.free or pool.bare
        number = free.pop() if free else len(self._all) + 1
        return self._all.get(number) or self._all.setdefault(number, Slot(self._arena, number))

    def free(self, number: int) -> None:
        """Give a slot back that was not lent."""
        self._pool.free.append(number)

    def lend(self, slot: Slot, size: int) -> NDArray[np.uint8]:
        """An array over a slot, which is given back when the array and its views have died."""
        memory = slot.fresh(size)
        dropped = None if slot.lock is None else self._dropped
        self._pool.held[slot.number] = weakref.ref(memory, _Return(self._pool, slot, dropped))
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
            self._pool.put_back(self._all[number])


class _Pool:
    """Slots that are lent, free, or kept for forked children.

    It lives as long as an array over one of its slots, so longer than its engine.
    """

    def __init__(self) -> None:
        self.held: dict[int, weakref.ref[Any]] = {}  # of batches that the consumer has
        self.free: deque[int] = deque()
        self.bare: deque[int] = deque()  # free as well, their memory given back
        self.keep = 1
        self.children: list[tuple[Child, frozenset[int]]] = []  # and the slots they may read
        self.left: dict[int, Slot] = {}  # let go of by all but children
        self.is_ours = True
        watch_forks(self)

    def has_lent(self) -> bool:
        return bool(self.held)

    def note_child(self, child: Child) -> None:
        self.look_at_children()
        if self.held:
            self.children.append((child, frozenset(self.held)))

    def disown(self) -> None:
        self.is_ours = False
        self.children.clear()

    def put_back(self, slot: Slot) -> None:
        """Take back a slot that this process uses no more."""
        if any(slot.number in seen for _, seen in self.children):
            self.left[slot.number] = slot
        elif len(self.free) < self.keep:
            self.free.append(slot.number)
        else:
            slot.forget()
            self.bare.append(slot.number)

    def look_at_children(self) -> None:
        """Take back what only children have used that have ended."""
        living = [(child, seen) for child, seen in self.children if not child.has_ended()]
        if len(living) == len(self.children):
            return
        self.children = living
        left, self.left = self.left, {}
        for slot in left.values():
            self.put_back(slot)


class _Return:
    """Returns a slot when what lay over it has died; to `dropped` if a device may still read it."""

    __slots__ = ("_dropped", "_pool", "_slot")

    def __init__(self, pool: _Pool, slot: Slot, dropped: deque[int] | None) -> None:
        self._pool, self._slot, self._dropped = pool, slot, dropped

    def __call__(self, _: object) -> None:
        pool = self._pool
        if not pool.is_ours:
            return  # a forked child lets go of what its parent may still use
        del pool.held[self._slot.number]
        if self._dropped is None:
            pool.put_back(self._slot)
        else:
            note_stream()
            self._dropped.append(self._slot.number)
