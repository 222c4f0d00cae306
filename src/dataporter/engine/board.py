"""The board: the tasks that workers have, their replies, and the slots they lie in.

A task is *issued* under a number of its own and has a slot until its reply is taken. A task that
is issued again gets another number and another slot. If a worker may still write into the old
slot, the old issue is *abandoned*: its slot is freed when a reply to it arrives, or when it is
known that no worker has it.

Invariants: every task on the board is taken exactly once, or dropped with its run; tasks are taken
in the order in which they were issued first, or as replies arrive; every slot is either handed out
with a taken issue or freed, exactly once.

The board knows no process, no pipe and no shared memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

TaskT = TypeVar("TaskT")

# The number of an issue to replace, the task to issue instead, and whether a living worker may
# still write into the old slot.
Reissue: TypeAlias = tuple[int, TaskT, bool]


@dataclass(slots=True)
class Issue(Generic[TaskT]):
    """A task that was handed to the workers, and where its reply lies in its slot."""

    task: TaskT
    slot: int
    outcome: int | None = None  # None until there is a reply
    offset: int = 0
    size: int = 0


class Board(Generic[TaskT]):
    """The issues of one engine, by number. `free` takes back a slot that nobody uses.

    >>> board = Board(free=print)
    >>> first, second = board.issue("a", slot=1), board.issue("b", slot=2)
    >>> board.note_reply(second, outcome=0, offset=0, size=8)
    >>> board.take() is None  # it is the turn of the first
    True
    >>> board.note_reply(first, outcome=0, offset=0, size=8)
    >>> board.take().task, board.take().task
    ('a', 'b')
    """

    def __init__(self, free: Callable[[int], object], *, in_order: bool = True) -> None:
        self._free = free
        self._in_order = in_order
        self._issues: dict[int, Issue[TaskT]] = {}
        self._turns: deque[int] = deque()  # numbers of issues, in the order of their tasks
        self._arrived: deque[int] = deque()  # those with a reply, unless turns are kept
        self._abandoned: dict[int, int] = {}  # slots by number of the issue
        self._last_number = 0
        self.unfinished = 0  # issues without a reply

    def __len__(self) -> int:
        """Count the tasks that were not taken yet."""
        return len(self._turns)

    def __iter__(self) -> Iterator[tuple[int, Issue[TaskT]]]:
        """Yield every issue with its number, in the order of their tasks."""
        return ((number, self._issues[number]) for number in self._turns)

    @property
    def num_ready(self) -> int:
        """The number of tasks with a reply."""
        return len(self._turns) - self.unfinished

    @property
    def oldest(self) -> tuple[int, Issue[TaskT]]:
        """The issue whose turn it is, with its number."""
        number = self._turns[0]
        return number, self._issues[number]

    @property
    def abandoned(self) -> Container[int]:
        """Numbers of the issues that a worker may have and nobody waits for."""
        return self._abandoned

    def get(self, number: int) -> Issue[TaskT] | None:
        """Look up an issue, None if it is not on the board (any more)."""
        return self._issues.get(number)

    def issue(self, task: TaskT, slot: int) -> int:
        """Add a task behind all others, and return the number of its issue."""
        number = self._added(task, slot)
        self._turns.append(number)
        return number

    def reissue(self, number: int, task: TaskT, slot: int, *, in_use: bool) -> int:
        """Replace an issue by a new one that has its turn, and return the number of that.

        `in_use` says that a living worker may still write into the old slot.
        """
        turn = self._turns.index(number)
        old = self._issues.pop(number)
        if old.outcome is None:
            self.unfinished -= 1
        elif not self._in_order:
            self._arrived.remove(number)
        self._turns[turn] = renewed = self._added(task, slot)
        if in_use:
            self._abandoned[number] = old.slot
        else:
            self._free(old.slot)
        return renewed

    def _added(self, task: TaskT, slot: int) -> int:
        self._last_number += 1
        self._issues[self._last_number] = Issue(task, slot)
        self.unfinished += 1
        return self._last_number

    def note_reply(self, number: int, outcome: int, offset: int, size: int) -> None:
        """Note that a worker has finished an issue."""
        issue = self._issues.get(number)
        if issue is None:
            self.release(number)
            return
        issue.outcome, issue.offset, issue.size = outcome, offset, size
        self.unfinished -= 1
        if not self._in_order:
            self._arrived.append(number)

    def is_next_ready(self) -> bool:
        """Tell whether `take` would return an issue."""
        if not self._in_order:
            return bool(self._arrived)
        return bool(self._turns) and self._issues[self._turns[0]].outcome is not None

    def take(self) -> Issue[TaskT] | None:
        """Take the next issue off the board if it has a reply. Its slot is the caller's then."""
        if not self.is_next_ready():
            return None
        if self._in_order:
            return self._issues.pop(self._turns.popleft())
        number = self._arrived.popleft()
        self._turns.remove(number)
        return self._issues.pop(number)

    def abandon_all(self) -> None:
        """Drop every task. Slots without a reply are freed once no worker has them."""
        for number, issue in self._issues.items():
            if issue.outcome is None:
                self._abandoned[number] = issue.slot
            else:
                self._free(issue.slot)
        self._issues.clear()
        self._turns.clear()
        self._arrived.clear()
        self.unfinished = 0

    def release(self, number: int) -> None:
        """Free the slot of an abandoned issue that no worker has; any other stays as it is."""
        slot = self._abandoned.pop(number, None)
        if slot is not None:
            self._free(slot)
