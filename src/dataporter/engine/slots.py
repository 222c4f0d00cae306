"""The slots of an engine: some are free, some the consumer holds, some a device reads.

A slot is free again when the last array or tensor over it dies. If the slot is page-locked, a
device may still be copying out of it then: it is used again when a mark that was taken afterwards
has passed. A mark costs as much as a small copy, so a few slots share one. Nobody waits for a
mark, unless more slots wait for devices than the budget allows. A slot that a forked child of the
user's may read is not used again before that child has ended.

A batch lies in shared memory, and a child that was forked while a batch lived reads the same pages
as its parent. The child inherits one end of a pipe, and so do the children that it forks in turn;
the parent's end shows when the last of them has ended. A child that closes all inherited
descriptors looks like one that has ended.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataporter.engine.arena import Slot
from dataporter.engine.budget import Budget
from dataporter.engine.cuda_events import Mark, mark, note_stream


class Slots:
    """Slots of one arena, by number, from 1."""

    def __init__(self, arena: int, budget: Budget) -> None:
        self._arena = arena
        self._budget = budget
        self._all: dict[int, Slot] = {}
        self._returns: dict[int, _Return] = {}
        self._pool = _Pool(budget)
        self._dropped: deque[int] = deque()  # dropped by the consumer, maybe read by a device
        self._read: deque[tuple[Mark, list[int]]] = deque()  # free once the mark has passed
        self._waiting = 0  # slots in `_read`

    def __getitem__(self, number: int) -> Slot:
        return self._all[number]

    @property
    def num_lent(self) -> int:
        """The number of slots that the consumer has."""
        return len(self._pool.lent)

    def take(self) -> Slot:
        """Take a free slot, or make one."""
        pool = self._pool
        if len(self._dropped) >= self._budget.marked_together or (self._read and not pool.free):
            self._free_what_devices_have_read()
        if pool.kept and not pool.free:
            pool.look_at_children()
        free = pool.free or pool.bare
        number = free.pop() if free else len(self._all) + 1
        return self._all.get(number) or self._made(number)

    def _made(self, number: int) -> Slot:
        self._all[number] = slot = Slot(self._arena, number)
        self._returns[number] = _Return(self._pool, slot, self._dropped)
        return slot

    def free(self, number: int) -> None:
        """Give back a slot that was not lent."""
        self._pool.free.append(number)

    def lend(self, slot: Slot, size: int) -> NDArray[np.uint8]:
        """Make an array over a slot. The slot is given back when array and views have died."""
        memory = slot.fresh(size)
        self._pool.lent[slot.number] = weakref.ref(memory, self._returns[slot.number])
        return memory

    def _free_what_devices_have_read(self) -> None:
        while self._read and self._read[0][0].passed():
            self._free_oldest()
        if len(self._dropped) < self._budget.marked_together:
            return
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        taken = mark()
        if taken is None:
            self._dropped.extend(dropped)
            return
        self._read.append((taken, dropped))
        self._waiting += len(dropped)
        while self._waiting > self._budget.most_read:
            self._read[0][0].wait()
            self._free_oldest()

    def _free_oldest(self) -> None:
        _, numbers = self._read.popleft()
        self._waiting -= len(numbers)
        for number in numbers:
            self._pool.put_back(self._all[number])


class _Pool:
    """Slots that are lent, free, or kept for forked children.

    A pool lives as long as any array over one of its slots, which may be longer than its engine.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.lent: dict[int, weakref.ref[Any]] = {}  # to batches that the consumer has
        self.free: deque[int] = deque()
        self.bare: deque[int] = deque()  # free as well, but their memory was given back
        self.children: list[tuple[Child, frozenset[int]]] = []  # and the slots they may read
        self.kept: dict[int, Slot] = {}  # used by children only
        self.is_ours = True
        watch_forks(self)

    def has_lent(self) -> bool:
        return bool(self.lent)

    def note_child(self, child: Child) -> None:
        self.look_at_children()
        if self.lent:
            self.children.append((child, frozenset(self.lent)))

    def disown(self) -> None:
        self.is_ours = False
        self.children.clear()

    def put_back(self, slot: Slot) -> None:
        """Take back a slot that this process does not use any more."""
        if self.children and any(slot.number in seen for _, seen in self.children):
            self.kept[slot.number] = slot
        elif len(self.free) < self._budget.most_free:
            self.free.append(slot.number)
        else:
            slot.forget()
            self.bare.append(slot.number)

    def look_at_children(self) -> None:
        """Take back slots of children that have ended."""
        living = [(child, seen) for child, seen in self.children if not child.has_ended()]
        if len(living) == len(self.children):
            return
        self.children = living
        kept, self.kept = self.kept, {}
        for slot in kept.values():
            self.put_back(slot)


class _Return:
    """Returns a slot whose array has died: to `dropped` if a device may still read the slot."""

    __slots__ = ("_dropped", "_pool", "_slot")

    def __init__(self, pool: _Pool, slot: Slot, dropped: deque[int]) -> None:
        self._pool, self._slot, self._dropped = pool, slot, dropped

    def __call__(self, _: object) -> None:
        pool = self._pool
        if not pool.is_ours:
            return  # in a forked child; its parent may still use the slot
        del pool.lent[self._slot.number]
        if self._slot.lock is None:
            pool.put_back(self._slot)
        else:
            note_stream()
            self._dropped.append(self._slot.number)


class Lender(Protocol):
    """An owner of slots of this process."""

    def has_lent(self) -> bool:
        """Tell whether a child that is forked now would share a lent slot."""
        ...

    def note_child(self, child: Child) -> None:
        """Keep the slots that are lent now until `child` has ended."""
        ...

    def disown(self) -> None:
        """Stop managing slots: this is a forked child, and they are its parent's."""
        ...


class Child:
    """A forked child and its descendants, known by the pipe whose other end they hold.

    Without a pipe (the system had no more descriptors) they count as alive forever.
    """

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe
        if pipe is not None:
            os.set_blocking(pipe, False)

    def has_ended(self) -> bool:
        """Tell whether all of them have ended."""
        if self._pipe is None:
            return False
        try:
            return os.read(self._pipe, 1) == b""
        except BlockingIOError:
            return False

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # no global at the end
        if self._pipe is not None:
            close(self._pipe)


# No WeakSet: another thread may add to it while it is iterated, which is in Python code there.
_lenders: set[weakref.ref[Lender]] = set()
_parents: list[int] = []  # in a child: the pipes by which its ancestors know that it lives


class _Fork(threading.local):
    """The fork that this thread is about to make."""

    pipe: tuple[int, int] | None = None
    shares: bool = False


_fork = _Fork()


def watch_forks(lender: Lender) -> None:
    """Tell a lender of every child that is forked while it has lent something."""
    _lenders.add(weakref.ref(lender, _lenders.discard))


def _living() -> list[Lender]:
    found = (reference() for reference in _lenders.copy())
    return [lender for lender in found if lender is not None]


def _before() -> None:
    _fork.shares = True  # in case this is interrupted
    _fork.shares = any(lender.has_lent() for lender in _living())
    if _fork.shares:
        try:
            _fork.pipe = os.pipe()
        except OSError:  # no more descriptors
            _fork.pipe = None


def _in_parent() -> None:
    if not _fork.shares:
        return
    pipe, _fork.pipe, _fork.shares = _fork.pipe, None, False
    if pipe is not None:
        os.close(pipe[1])
    child = Child(None if pipe is None else pipe[0])
    for lender in _living():
        lender.note_child(child)


def _in_child() -> None:
    pipe, _fork.pipe, _fork.shares = _fork.pipe, None, False
    if pipe is not None:
        os.close(pipe[0])
        _parents.append(pipe[1])
    for lender in _living():
        lender.disown()
    _lenders.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
