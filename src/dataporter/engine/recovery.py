"""Recovery: tasks that dead workers had are issued again, and the workers are replaced.

`Losses` decides for how long: as long as the run makes progress.

There are two policies: `lost_by_any_worker` where any worker may run a task, and
`lost_by_lane_workers` where a task must run in the worker that reads its lane. Both are pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Sequence
from typing import NamedTuple, TypeVar

from dataporter.engine.board import Board, Reissue
from dataporter.engine.connections import Connections
from dataporter.engine.crew import Crew
from dataporter.engine.issuing import Issuer
from dataporter.errors import WorkerDiedError, WorkerRestartWarning, WorkerStartError
from dataporter.fetch.tasks import Renew, Task, payload_in_words
from dataporter.system.signals import name_of_signal
from dataporter.user_warnings import warn_user

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


class Loss(NamedTuple):
    """A worker that died, and the task that it had."""

    worker: int
    pid: int | None
    exitcode: int | None  # negative: the signal that killed it
    task: Task | None
    has_begun: bool  # it was able to report errors
    how: str = ""  # its end in words, where there is no exit status
    is_first: bool = True  # False: others have died before it, since it was started


class Losses:
    """Decides whether dead workers are replaced: as long as the run makes progress.

    At most `most` workers are replaced that die of the same task, and at most `most` that die one
    after another with nothing delivered in between. Of workers that die together, as those of one
    machine do, only the first counts.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_task: dict[int, int] = {}  # deaths by the number of the batch in hand
        self._in_a_row = 0  # deaths with nothing delivered in between
        self._delivered = 0  # batches since deaths were last noticed

    def begin_run(self) -> None:
        """Forget the tasks of the run before. Deaths in a row still count."""
        self._of_task.clear()

    def note_delivery(self, task: Task) -> None:
        """Note that a batch was delivered."""
        self._delivered += 1
        if self._of_task:
            self._of_task.pop(task.number, None)

    def note(self, lost: Sequence[Loss], awaited: Task) -> None:
        """Warn about dead workers, or raise if the run makes no progress."""
        # Deaths are noticed only when the consumer has to wait. Idle workers may have died one by
        # one, while batches that had been fetched ahead were delivered in between.
        delivered, self._delivered = self._delivered, 0
        for number, loss in enumerate(lost):
            if loss.is_first or not self._in_a_row:
                self._in_a_row = 1 if 0 < delivered >= number else self._in_a_row + 1
            what = _described(loss)
            if loss.exitcode == _PYTHON_FAILED and not loss.has_begun:
                msg = f"{what}. {_WHY_NOT_STARTED}"
                raise WorkerStartError(msg)
            why = self._why_not_replaced(loss.task, awaited)
            if why:
                msg = (
                    f"{what}. {why}; at most {self._most} are replaced (max_restarts). If the "
                    "system ran out of memory, use fewer workers or smaller batches. If the "
                    "dataset crashes, num_workers=0 shows where."
                )
                self._in_a_row = 0  # a new attempt may lose as many
                raise WorkerDiedError(msg)
            msg = f"{what}. It is replaced, and its batch fetched again: the data does not change."
            warn_user(msg, WorkerRestartWarning)

    def _why_not_replaced(self, task: Task | None, awaited: Task) -> str:
        """Explain why one more dead worker ends the run; empty if the run goes on."""
        if task is not None:
            number = task.number
            deaths = self._of_task[number] = self._of_task.get(number, 0) + 1
            if deaths > self._most:
                return f"{deaths} workers have died while fetching this batch"
        if self._in_a_row > self._most:
            return (
                f"{self._in_a_row} workers have died with no batch delivered in between, while "
                f"waiting for {awaited}"
            )
        return ""


_PYTHON_FAILED = 1  # the exit status of a process that an exception has ended
_WHY_NOT_STARTED = (
    "It could not start, and wrote the reason to stderr. A worker that is not forked imports the "
    "main script first. Make sure that the script can be imported: put the code that iterates the "
    "loader under `if __name__ == '__main__':`, or use multiprocessing_context='fork'."
)


def _described(loss: Loss) -> str:
    status = loss.exitcode or 0
    how = f"ended with status {status}"
    if loss.how:
        how = loss.how
    elif status < 0:  # the words that torch's loader uses, for people who search for them
        how = f"is killed by signal: {name_of_signal(-status)}"
    when = "between two batches" if loss.has_begun else "before its first batch"
    if loss.task is not None:
        when = f"while fetching {loss.task} ({payload_in_words(loss.task.payload)})"
    return f"DataLoader worker (pid {loss.pid}) {how}; it was worker {loss.worker}, {when}"
