"""Recovery: tasks that dead workers had are issued again, and the workers are replaced.

There are two policies: `lost_by_any_worker` where any worker may run a task, and
`lost_by_lane_workers` where a task must run in the worker that reads its lane. Both are pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container
from typing import TypeVar

from dataporter.engine.board import Board, Reissue
from dataporter.engine.connections import Connections
from dataporter.engine.crew import Crew
from dataporter.engine.issuing import Issuer
from dataporter.engine.losses import Loss, Losses
from dataporter.fetch.tasks import Renew, Task

_log = logging.getLogger(__name__)

TaskT = TypeVar("TaskT")


def lost_by_any_worker(
    board: Board[TaskT], *, nobody_has: Container[int], somebody_has: Container[int]
) -> list[Reissue[TaskT]]:
    """Choose the issues that no living worker is known to have.

    `nobody_has` are issues that were taken back or that dead workers had; `somebody_has` those
    that living workers have noted. An issue in neither may have been read by a living worker that
    has not noted it yet. It is issued again as well, but its slot stays in use.
    """
    return [
        (number, issue.task, number not in nobody_has)
        for number, issue in board
        if issue.outcome is None and (number in nobody_has or number not in somebody_has)
    ]


def lost_by_lane_workers(
    board: Board[Task], is_lost: Callable[[int], bool], renew: Renew
) -> list[Reissue[Task]]:
    """Choose all undelivered issues of lost places, with those that have a reply.

    A lane starts again after its last delivery, so its tasks are made anew.
    """
    lost = [(number, issue.task) for number, issue in board if is_lost(issue.task.place or 0)]
    tasks = renew([task for _, task in lost], is_lost)
    return [(number, task, False) for (number, _), task in zip(lost, tasks, strict=True)]


class Replacements:
    """Counts the workers of a loader that were replaced, over all of its engines."""

    def __init__(self) -> None:
        self.count = 0


class Recovery:
    """Replaces the dead workers of one engine, as long as its run makes progress.

    `renew` makes the tasks of lost places anew; None in a run whose tasks have no places.
    """

    def __init__(
        self,
        board: Board[Task],
        issuer: Issuer,
        connections: Connections,
        crew: Crew,
        losses: Losses,
        replacements: Replacements,
    ) -> None:
        self._board = board
        self._issuer = issuer
        self._connections = connections
        self._crew = crew
        self._losses = losses
        self._replacements = replacements
        self.renew: Renew | None = None

    def replace_dead_workers(self, killed: Collection[int] = ()) -> None:
        """Issue again what dead workers had, and start others.

        `killed` are workers that the engine has ended itself.
        """
        dead = self._crew.dead()
        if dead:
            self._issuer.read_replies()
            lost = self._lost_issues(dead)
            losses = [self._dismiss(worker) for worker in dead]
            self._issuer.reissue(lost)
            _, oldest = self._board.oldest
            # May raise: by now nothing is half done.
            self._losses.note([loss for loss in losses if loss.worker not in killed], oldest.task)
            self._replacements.count += len(losses)
            for loss in losses:
                _log.info("replacing worker %d (pid %s), which has died", loss.worker, loss.pid)
        self._crew.start()  # also if one retired as told, and more are wanted again by now

    def _lost_issues(self, dead: list[int]) -> list[Reissue[Task]]:
        if self.renew is not None:
            self._connections.take_back(dead)
            worker_of = self._connections.worker_of
            return lost_by_lane_workers(
                self._board, lambda place: worker_of(place) in dead, self.renew
            )
        taken_back = self._connections.take_back()
        had = {self._crew.issue_of(worker) for worker in dead}
        somebody_has = self._crew.issues_in_hand(but_not=dead)
        return lost_by_any_worker(
            self._board, nobody_has=taken_back | had, somebody_has=somebody_has
        )

    def _dismiss(self, worker: int) -> Loss:
        number, has_begun = self._crew.issue_of(worker), self._crew.has_begun(worker)
        issue = self._board.get(number)
        self._board.release(number)
        process = self._crew.dismiss(worker)
        task = None if issue is None else issue.task
        return Loss(worker, process.pid, process.exitcode, task, has_begun)
