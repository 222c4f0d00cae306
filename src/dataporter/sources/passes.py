"""A pass: the iterator that a loader returns. It hands over batches and counts them.

The run's progress is replaced, in one assignment, when a batch is handed over: never at
prefetch, never in pieces. So a state is right at every moment, a signal handler's too.

An interrupt may come at any moment, and whoever catches it may go on. So a result counts as taken
when it is handed over: from then on there are only assignments, between which Python runs no
handler. Whatever is interrupted before is done again from the last progress.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any, NoReturn

from dataporter.errors import SharedIteratorError, StaleIteratorError
from dataporter.fetch import EMPTY, Failed, Late
from dataporter.law.epochs import Cursor
from dataporter.law.state import Progress
from dataporter.layout import counted
from dataporter.sources.left_out import left_out_of
from dataporter.sources.readings import Result
from dataporter.sources.source import Source
from dataporter.sources.tally import Tallies, size_of

_log = logging.getLogger(__name__)

_SHARED = (
    "next() was called while another call was advancing this iterator, in another thread or before "
    "a handler of a signal: batches could come twice or never. Ask for batches in one thread, and "
    "hand them on through a queue.Queue; or guard each call of next() by one threading.Lock."
)


class Pass(Iterator[Any]):
    """One pass over a loader, from wherever its cursor stands.

    `run` yields what remains of `source` after a progress. A state loaded in the meantime takes
    effect here: the pass goes on at the loaded position, or raises if another pass has taken
    that over. `resumed_by_trainer` means that a trainer resumes which knows no positions: see
    `_first_result`.
    """

    def __init__(
        self,
        cursor: Cursor,
        run: Callable[[Progress], Iterator[Result]],
        source: Source,
        tallies: Tallies,
        *,
        resumed_by_trainer: bool,
    ) -> None:
        self._cursor = cursor
        self._run = run
        self._source = source
        self._tallies = tallies
        self._resumed_by_trainer = resumed_by_trainer  # until there is a result
        self._was_loaded = cursor.has_loaded_start
        self._is_busy = False  # while a call advances this pass
        self._begin()

    @property
    def _progress(self) -> Progress:
        """The progress of this pass."""
        return self._tally.last[0]

    def _begin(self) -> None:
        """Begin where the cursor says; if that fails, the cursor goes on saying so."""
        before, began = self._cursor.newest_pass, monotonic_ns()
        self._loads = self._changes = -1  # until it has begun
        self._coming: tuple[Result, ...] = ()  # results that come next
        # What was under way ends here, so that its workers are free for what begins.
        self._results: Iterator[Result] | None = iter(())
        self._broken = False  # the results are at their end, and the epoch is not
        try:
            is_loaded = self._cursor.has_loaded_start
            progress = self._cursor.begin_pass()
            self._tally = self._tallies.begin(progress, began)
            self._number = self._cursor.newest_pass
            if not progress.finished:
                self._results = self._run(progress)
                self._tally.note_wait(began)
            self._log_start(progress, is_loaded=is_loaded)
            self._loads, self._changes = self._cursor.loads, self._cursor.changes
        except BaseException:
            self._results = iter(())
            self._cursor.take_back(before)
            raise

    def _log_start(self, progress: Progress, *, is_loaded: bool) -> None:
        """Log where a pass begins."""
        length, at = self._source.length, f"{progress.samples_processed:,}"
        where = at if length is None else f"{at} of {length:,}"
        if progress.finished:
            _log.debug("epoch %d has ended already: the pass is empty", progress.epoch)
        elif is_loaded and progress.batches_processed:
            _log.info("resumed epoch %d at %s", progress.epoch, where)
        else:
            _log.debug("begins epoch %d at %s", progress.epoch, where)

    def __next__(self) -> Any:
        if self._is_busy:
            raise SharedIteratorError(_SHARED)
        self._is_busy = True  # an assignment: a lock's release is a moment for handlers of signals
        try:
            tally = self._tally
            tally.unmeasured -= 1
            if tally.unmeasured < 0:
                self._measure_next()
            while True:
                if self._changes != self._cursor.changes and self._results is not None:
                    self._follow_change()
                if not self._broken and self._coming:
                    delivery, batch = self._coming[0]
                else:
                    try:
                        delivery, batch = self._next_result()
                    except StopIteration:
                        self._finish()
                        raise
                if type(batch) is Failed or type(batch) is Late:
                    # Not held by this frame, which its error holds.
                    held, batch = [batch], None
                    self._raise(delivery, held)
                progress, contents = delivery
                if batch is EMPTY:  # every sample of it was left out
                    self._note_undelivered(progress)
                self._tally.left_out += left_out_of(contents)
                self._cursor.deliver(progress, contents, by=self._number)
                self._tally.last, self._coming, self._broken = delivery, self._coming[1:], False
                if batch is not EMPTY:
                    return batch
        finally:
            self._is_busy = False

    def _raise(self, delivery: Any, held: list[Failed | Late]) -> NoReturn:
        """Raise the error that came in place of a batch."""
        if type(held[0]) is Failed:
            # The state stays before it. Who catches this and goes on, goes on after it.
            self._note_undelivered(delivery[0])
            self._tally.left_out += 0 if delivery[1] is None else size_of(delivery[1])
            self._tally.last = delivery
        # If it is late nothing has changed: the next call waits on for the same batch.
        error = _raisable(held.pop().error)
        self._coming, self._broken = self._coming[1:], False
        try:
            raise error
        finally:
            del error  # it holds this frame: the pass would not end when it is dropped

    def _measure_next(self) -> None:
        """Get the batch that comes next, and measure it. It is handed over by the caller."""
        if self._results is None or self._changes != self._cursor.changes:
            return
        asked = monotonic_ns()
        with contextlib.suppress(StopIteration):
            if self._broken or not self._coming:
                self._look()
            delivery, batch = self._coming[0]
            if type(batch) is Late:
                self._tally.note_wait(asked)
            elif type(batch) is not Failed and batch is not EMPTY:
                self._tally.measure(delivery, batch, asked)

    def _note_undelivered(self, progress: Progress) -> None:
        """Take note that a batch which counts in the progress is not handed over."""
        batches = progress.batches_processed - self._progress.batches_processed
        self._tally.undelivered += batches

    def __len__(self) -> int:
        """Batches of a full epoch, wherever this pass began, as torch's iterators say it."""
        return self._source.num_batches()

    def _next_result(self) -> Result:
        """Take the next result, or raise: at the end StopIteration.

        The caller says when it has it safely: `_broken` is True until then, since an iterator that
        was interrupted is at its end, and the epoch is not.
        """
        if self._resumed_by_trainer:
            return self._first_result()
        if self._results is None:
            raise StopIteration
        if self._broken:
            self._coming = ()
            self._source.restore(self._progress)
            self._results = self._run(self._progress)
        self._broken = True
        try:
            return next(self._results)
        except StopIteration:
            self._broken = False
            raise

    def _first_result(self) -> Result:
        """Take the first result of the epoch in which the trainer resumes.

        It may have told the sampler that epoch after it began this pass. Where a state was loaded,
        nothing may remain of the loaded epoch: then it is the next one.
        """
        self._resumed_by_trainer = False
        told = None if self._was_loaded else self._source.epoch_holder.told_by_others()
        if told is not None:
            self._cursor.set_epoch(told)
            self._begin()
        try:
            return self._next_result()
        except StopIteration:
            if not self._was_loaded:
                raise
        self._finish()
        self._begin()
        return self._next_result()

    def _look(self) -> None:
        """Add the next result to those that come, or raise: at the end StopIteration."""
        result = self._next_result()
        self._coming, self._broken = (*self._coming, result), False

    def _finish(self) -> None:
        is_newest = self._number == self._cursor.newest_pass  # whose end is the run's
        if is_newest and not self._progress.finished:
            self._cursor.deliver(self._source.ended(self._progress), by=self._number)
        self._results = None
        batches = counted(self._progress.batches_processed, "batch")
        _log.debug("epoch %d ends after %s", self._progress.epoch, batches)

    def is_last(self) -> bool:
        """Return True if nothing follows the batch handed over last.

        That may take a look at what follows, which is kept and not counted as delivered. An
        error there is raised by the call that would deliver it.
        """
        if self._results is None or self._changes != self._cursor.changes or self._broken:
            return self._results is None
        try:
            while not self._coming or self._coming[-1][1] is EMPTY:
                self._look_ahead()
        except StopIteration:
            return True
        except SharedIteratorError:
            raise
        except Exception:  # noqa: BLE001  the next call tries from here again
            return False
        return False

    def await_workers(self) -> None:
        """Wait until workers have begun, and raise here what went wrong with that."""
        if self._results is None or self._broken or self._coming or self._resumed_by_trainer:
            return
        with contextlib.suppress(StopIteration):
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Look likewise, before the batch is asked for: that is waiting too."""
        if self._is_busy:
            raise SharedIteratorError(_SHARED)
        self._is_busy = True
        try:
            asked = monotonic_ns()
            self._look()
            self._tally.note_wait(asked)
        finally:
            self._is_busy = False

    def _follow_change(self) -> None:
        if self._loads == self._cursor.loads:
            self._results = iter(())  # its workers are free for the rest as it is now
            self._changes, self._broken = self._cursor.changes, True
            return
        if not self._cursor.has_loaded_start:
            msg = (
                "load_state_dict() was called after this iterator was made, and another "
                "iterator has continued from the loaded position since. Use that one, or make "
                "a new one with iter(loader)."
            )
            raise StaleIteratorError(msg)
        self._begin()
        self._measure_next()  # a tally begins, which knows no batch yet


def _raisable(error: Exception) -> Exception:
    """An error as it is, unless it would be taken for the end of the pass."""
    if not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError("the dataset raised StopIteration")
    wrapped.__cause__ = error
    return wrapped
