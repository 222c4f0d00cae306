"""Losses: dead workers are replaced as long as their run makes progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dataporter.errors import WorkerDiedError, WorkerRestartWarning, WorkerStartError
from dataporter.fetch.tasks import Task, payload_in_words
from dataporter.system.signals import name_of_signal
from dataporter.user_warnings import warn_user


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
