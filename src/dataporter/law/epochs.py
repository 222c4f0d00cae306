"""The cursor: where a run stands, and where its next pass begins.

The rules of passes and epochs, and nothing else:

- A pass is the next epoch, unless `load` or `set_epoch` has just said where to begin.
- After `load`, it continues the epoch at the loaded position; the rest of an epoch whose
  last batch was delivered is empty; an epoch that ran to its end is followed by the next.
- `set_epoch(e)` begins epoch e at its start; if e is the epoch just loaded, the loaded
  position stays, and an epoch that had run to its end is not run again. Any other epoch drops
  the loaded position; `dropped_by` says so before.
- Of several live passes the newest one is the run's.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dataporter.law.state import Progress

# A trainer may hold the batch that it works on and one that it has looked ahead to.
MOST_UNUSED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The place where the next pass begins."""

    progress: Progress
    loaded: bool = False
    chosen: bool = False  # by set_epoch: not to be moved on to the next epoch


class Place:
    """The place where a run stands, for all who want to know it.

    Its cursor moves it, as long as there is one: a sampler that is given another position asks it.
    """

    __slots__ = ("_mover", "progress")

    def __init__(self, progress: Progress) -> None:
        # Read by state_dict() at any moment: replaced as a whole, never changed in place.
        self.progress = progress
        self._mover: weakref.ref[Cursor] | None = None

    @property
    def mover(self) -> Cursor | None:
        """The cursor of the run, None once it is gone."""
        return None if self._mover is None else self._mover()

    @mover.setter
    def mover(self, cursor: Cursor) -> None:
        self._mover = weakref.ref(cursor)

    def __reduce__(self) -> tuple[Any, ...]:
        return Place, (self.progress,)  # the cursor of a copy takes it over


class Epochs(Protocol):
    """The epochs of a source, as far as a cursor asks for them."""

    def fresh(self, epoch: int) -> Progress:
        """Say where the run stands at the start of an epoch that begins now."""
        ...

    def at(self, progress: Progress, position: int) -> Progress:
        """Say where the run stands at a position of the epoch of another progress."""
        ...

    def restore(self, progress: Progress) -> None:
        """Go to where a progress was taken."""
        ...

    def undo_restore(self) -> None:
        """A loaded position is given up for another epoch."""
        ...

    def settle(self, progress: Progress) -> None:
        """A pass was broken off at `progress`, whatever was drawn ahead of it."""
        ...

    def take_back(self, progress: Progress) -> None:
        """A pass that was to begin at `progress` could not, whatever was drawn for it."""
        ...


class Cursor:
    """The place where a run stands, and the rules by which it moves.

    >>> class Epochs:
    ...     def fresh(self, epoch):
    ...         return Progress(epoch=epoch)
    ...     def settle(self, progress):
    ...         pass
    >>> cursor = Cursor(Epochs())
    >>> [cursor.begin_pass().epoch for _ in range(3)]
    [0, 1, 2]
    >>> cursor.set_epoch(7)
    >>> cursor.begin_pass().epoch
    7
    """

    def __init__(self, source: Epochs) -> None:
        self._source = source
        self._start: _Start | None = _Start(progress=source.fresh(0))
        self._begun: _Start | None = None  # where the last pass was to begin
        self._pass = 0
        self._is_open = False  # a pass has begun since, and may have been broken off
        self._taken_back: Progress | None = None  # of a pass that could not begin
        self.place = Place(self._start.progress)
        self.place.mover = self
        self._earlier: tuple[Progress, ...] = ()  # of this pass, before the last batches
        self._contents: Any = None
        self.loads = 0
        self.changes = 0  # of what passes consist of, loads included

    @property
    def progress(self) -> Progress:
        """The progress of the run."""
        # Where it is replaced, and other assignments follow, no call may come in between: at calls
        # Python runs handlers of signals.
        return self.place.progress

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.place.mover = self

    @property
    def has_loaded_start(self) -> bool:
        """True if a loaded position still waits for a pass to begin there."""
        return self._start is not None and self._start.loaded

    def load(self, progress: Progress) -> None:
        """Make the next pass continue at `progress`."""
        self._start = _Start(progress=progress, loaded=True)
        self._is_open = False
        self._taken_back = None  # what is loaded was put in its place
        self._earlier = ()
        self.place.progress = progress
        self.loads += 1
        self.changes += 1

    def note_change(self) -> None:
        """Take note that what passes consist of has changed: those under way read it anew."""
        self.changes += 1

    def dropped_by(self, epoch: int) -> Progress | None:
        """Return the loaded position that `set_epoch(epoch)` would drop, None if it drops none."""
        start = self._start
        if start is None or not start.loaded or start.progress.epoch == epoch:
            return None
        is_followed = start.progress.finished and start.progress.epoch + 1 == epoch
        return None if is_followed else start.progress

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`."""
        start = self._start
        if start is not None and start.loaded and start.progress.epoch == epoch:
            self._start = replace(start, chosen=True)
            return
        self._undo_beginning()
        if start is not None and start.loaded:
            self._source.undo_restore()
        self._settle()
        self._start = _Start(progress=self._source.fresh(epoch))
        self._earlier = ()
        self.place.progress = self._start.progress

    def seek(self, epoch: int, position: int) -> None:
        """Make the next pass begin at a position of an epoch, whatever was loaded before."""
        if position:
            self._source.at(self.place.progress, position)  # raises before anything has changed
        self._undo_beginning()
        if self.has_loaded_start:
            self._source.undo_restore()
        self._settle()
        progress = self._source.fresh(epoch)
        if position:
            progress = self._source.at(progress, position)
        self._source.restore(progress)
        self.load(progress)

    def begin_pass(self) -> Progress:
        """Begin a pass, and say where. Nothing remains of it if that is `finished`."""
        start = self._start
        self._undo_beginning()
        if start is None or not start.loaded:
            self._settle()
        if start is None:
            progress = self._source.fresh(self.place.progress.epoch + 1)
        elif not start.loaded:
            progress = self._source.fresh(start.progress.epoch)
        elif start.progress.finished and not start.chosen:
            progress = self._source.fresh(start.progress.epoch + 1)
        else:
            progress = start.progress
        loaded = start is not None and start.loaded
        begun = _Start(progress=progress, loaded=loaded, chosen=True)
        # Assignments only, so that an interrupt leaves either pass whole.
        self._begun, self._start, self._earlier = begun, None, ()
        self.place.progress, self._is_open = progress, True
        self._pass += 1
        return progress

    def take_back(self, newest_pass: int) -> None:
        """Undo the beginning of a pass that failed: the next pass begins where it would have."""
        if self._pass == newest_pass or self._begun is None:
            return
        # Assignments only: an interrupt may be on its way, and another one may come.
        self._taken_back = self._begun.progress
        self._start, self._is_open = self._begun, False

    def _undo_beginning(self) -> None:
        """Make the source forget what was drawn for a pass that could not begin."""
        if self._taken_back is not None:
            self._source.take_back(self._taken_back)
            self._taken_back = None

    def _settle(self) -> None:
        """Forget, once, what was drawn ahead of a pass that was broken off."""
        if self._is_open and not self.place.progress.finished:
            self._source.settle(self.place.progress)
        self._is_open = False

    @property
    def newest_pass(self) -> int:
        """The number of the pass that began last."""
        return self._pass

    def deliver(self, progress: Progress, contents: Any = None, *, by: int) -> None:
        """Take note of what pass number `by` has handed over."""
        if by == self._pass:
            if not progress.finished:  # the end is no batch
                self._earlier = (*self._earlier[1 - MOST_UNUSED :], self.place.progress)
                self._contents = contents
            self.place.progress = progress

    @property
    def in_hand(self) -> Any:
        """The contents of the batch delivered last in this pass, as its source says it."""
        return self._contents if self._earlier else None

    def before(self, batches: int) -> Progress:
        """Return the progress before the last `batches` of this pass, at most its start."""
        back = min(batches, len(self._earlier))
        return self._earlier[-back] if back else self.place.progress
