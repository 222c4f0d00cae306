"""Forked children of the user's program: the batches that they hold do not change.

A batch lies in shared memory. A child that was forked while a batch lived reads the same pages as
its parent, so a slot that was lent at that moment is not used again before the child has ended.
The child inherits one end of a pipe for that, and so do the children that it forks in turn; the
parent's end shows when the last of them has ended.

A child that closes all inherited descriptors looks like one that has ended.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


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

    def __del__(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)


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
