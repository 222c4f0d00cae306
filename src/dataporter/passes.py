"""A pass: the iterator that a loader returns. It hands over batches and counts them.

The run's progress is replaced, in one assignment, when a batch is handed over: never at
prefetch, never in pieces. So a state is right at every moment, a signal handler's too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from dataporter.cursor import Cursor
from dataporter.errors import StaleIteratorError
from dataporter.fetch import EMPTY, Failed
from dataporter.tasks import Task
from dataporter.utils.state_dict import Progress


class Pass(Iterator[Any]):
    """One pass over a loader, from wherever its cursor stands.

    `run` yields what remains after a progress, `rerun` likewise after an interrupt, and `end`
    says what the end of an epoch leads to. A state loaded in the meantime takes effect
    here: the pass goes on at the loaded position, or raises if another pass has taken that
    over.
    """

    def __init__(
        self,
        cursor: Cursor,
        run: Callable[[Progress], Iterator[tuple[Task, Any]]],
        rerun: Callable[[Progress], Iterator[tuple[Task, Any]]],
        end: Callable[[Progress], Progress],
    ) -> None:
        self._cursor = cursor
        self._run = run
        self._rerun = rerun
        self._end = end
        try:
            self._begin()
        except BaseException:
            cursor.take_back()
            raise

    def _begin(self) -> None:
        self._progress = self._cursor.begin_pass()
        self._number = self._cursor.newest_pass
        self._loads = self._cursor.loads
        self._looked_at: deque[tuple[Task, Any]] = deque()  # results that come next
        # What was under way ends here, so that its workers are free for what begins.
        self._results: Iterator[tuple[Task, Any]] | None = iter(())
        self._broken = not self._progress.finished
        if self._broken:
            self._results, self._broken = self._run(self._progress), False

    def __next__(self) -> Any:
        batch = self._next_batch()
        while batch is EMPTY:  # every sample of it was left out
            batch = self._next_batch()
        return batch

    def is_last(self) -> bool:
        """Whether nothing follows the batch handed over last.

        That may take a look at what follows, which is kept and not counted as delivered. An
        error there is raised by the call that would deliver it.
        """
        if self._results is None or self._loads != self._cursor.loads or self._broken:
            return self._results is None
        try:
            while not self._looked_at or self._looked_at[-1][1] is EMPTY:
                self._looked_at.append(next(self._results))
        except StopIteration:
            return True
        except BaseException as error:
            self._broken = True  # so the next call tries from here again
            if not isinstance(error, Exception):
                raise
        return False

    def await_workers(self) -> None:
        """Wait until workers have begun, and raise here what went wrong with that."""
        if self._results is None or self._broken:
            return
        for result in self._results:
            if type(result[1]) is Failed and result[1].in_init:
                self._broken = True
                raise result[1].error
            self._looked_at.append(result)
            return

    def _next_batch(self) -> Any:
        if self._results is None:
            raise StopIteration
        if self._loads != self._cursor.loads:
            self._follow_load()
        if self._broken:
            self._looked_at.clear()
            self._results, self._broken = self._rerun(self._progress), False
        try:
            task, batch = self._looked_at.popleft() if self._looked_at else next(self._results)
        except StopIteration:
            self._results = None
            is_newest = self._number == self._cursor.newest_pass  # whose end is the run's
            if is_newest and not self._progress.finished:
                self._cursor.deliver(self._end(self._progress), by=self._number)
            raise
        except BaseException:
            # Its iterator is at its end now, the epoch is not: the next call tries this batch
            # again, so that catching an interrupt loses nothing.
            self._broken = True
            raise
        self._progress = task.progress
        if type(batch) is Failed:
            # The state stays before it. Who catches this and goes on, goes on after it.
            raise _raisable(batch.error)
        self._cursor.deliver(task.progress, by=self._number)
        return batch

    def _follow_load(self) -> None:
        if not self._cursor.has_loaded_start:
            msg = (
                "load_state_dict() was called after this iterator was made, and another "
                "iterator has continued from the loaded position since. Use that one, or make "
                "a new one with iter(loader)."
            )
            raise StaleIteratorError(msg)
        self._begin()


def _raisable(error: Exception) -> Exception:
    """An error as it is, unless it would be taken for the end of the pass."""
    if not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError("the dataset raised StopIteration")
    wrapped.__cause__ = error
    return wrapped
