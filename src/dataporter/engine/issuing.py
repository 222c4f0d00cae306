"""Issuing tasks to workers, and reading their replies. All of it is noted on the board."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from dataporter.engine.board import Board, Reissue
from dataporter.engine.budget import Budget, Limits
from dataporter.engine.connections import Connections
from dataporter.engine.slots import Slots
from dataporter.engine.wire import write_task
from dataporter.fetch.tasks import Task


class Issuer:
    """Writes tasks into slots and tells workers of them, as far as the budget allows."""

    def __init__(
        self, board: Board[Task], budget: Budget, slots: Slots, connections: Connections
    ) -> None:
        self._board = board
        self._budget = budget
        self._slots = slots
        self._connections = connections
        self._run = 0

    def begin_run(self) -> None:
        """Number the next run, so that workers notice that it begins."""
        self._run += 1

    def top_up(self, tasks: Iterator[Task], limits: Limits) -> None:
        """Issue tasks up to the limits, unless there is room for too few."""
        board = self._board
        room = min(limits.ahead - len(board), limits.unfinished - board.unfinished)
        if room >= limits.together:
            for task in islice(tasks, room):
                self._add(task)
            self._connections.send()

    def reissue(self, lost: Iterable[Reissue[Task]]) -> None:
        """Issue tasks in place of issues that were lost."""
        for number, task, in_use in lost:
            self._add(task, number, in_use=in_use)
        self._connections.send()

    def _add(self, task: Task, replaces: int | None = None, *, in_use: bool = False) -> None:
        slot = self._slots.take()
        size = write_task(slot, self._run, task.payload)
        if replaces is None:
            number = self._board.issue(task, slot.number)
        else:
            number = self._board.reissue(replaces, task, slot.number, in_use=in_use)
        self._connections.add(task.place, number, slot.number, size)

    def read_replies(self) -> None:
        """Note every reply that is there. Waits for none."""
        for number, _, outcome, offset, size in self._connections.read_replies():
            self._board.note_reply(number, outcome, offset, size)
            self._budget.note_size(offset + size)

    def abandon(self) -> None:
        """Drop every task. What workers have is freed with their replies."""
        self.read_replies()
        self._board.abandon_all()
        for number in self._connections.take_back():
            self._board.release(number)
