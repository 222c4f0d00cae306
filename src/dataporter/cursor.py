"""The cursor: where a run stands, and where its next pass begins.

The rules of passes and epochs, and nothing else:

- A pass is the next epoch, unless `load` or `set_epoch` has just said where to begin.
- After `load`, it continues the epoch at the loaded position; the rest of an epoch whose
  last batch was delivered is empty; an epoch that ran to its end is followed by the next.
- `set_epoch(e)` begins epoch e at its start; if e is the epoch just loaded, the loaded
  position stays, and an epoch that had run to its end is not run again.
- Of several live passes the newest one is the run's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dataporter.utils.state_dict import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Where the next pass begins."""

    progress: Progress
    loaded: bool = False
    chosen: bool = False  # by set_epoch: not to be moved on to the next epoch


class Cursor:
    """Where a run stands.

    `fresh(epoch)` is the progress at the start of an epoch that begins now; `unload()` is
    called when a loaded position is given up for another epoch.

    >>> cursor = Cursor(lambda epoch: Progress(epoch=epoch))
    >>> [cursor.begin_pass().epoch for _ in range(3)]
    [0, 1, 2]
    >>> cursor.set_epoch(7)
    >>> cursor.begin_pass().epoch
    7
    """

    def __init__(
        self, fresh: Callable[[int], Progress], unload: Callable[[], None] = lambda: None
    ) -> None:
        self._fresh = fresh
        self._unload = unload
        self._start: _Start | None = _Start(progress=fresh(0))
        self._pass = 0
        # Read by state_dict() at any moment: replaced as a whole, never changed in place.
        self.progress = fresh(0)
        self.loads = 0

    @property
    def has_loaded_start(self) -> bool:
        """Whether a loaded position still waits for a pass to begin there."""
        return self._start is not None and self._start.loaded

    def load(self, progress: Progress) -> None:
        """Make the next pass continue at `progress`."""
        self._start = _Start(progress=progress, loaded=True)
        self.progress = progress
        self.loads += 1

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`."""
        start = self._start
        if start is not None and start.loaded and start.progress.epoch == epoch:
            self._start = replace(start, chosen=True)
            return
        if start is not None and start.loaded:
            self._unload()
        self._start = _Start(progress=self._fresh(epoch), chosen=True)
        self.progress = self._start.progress

    def begin_pass(self) -> Progress:
        """Begin a pass, and say where. Nothing remains of it if that is `finished`."""
        start = self._start
        if start is None:
            progress = self._fresh(self.progress.epoch + 1)
        elif not start.loaded:
            progress = self._fresh(start.progress.epoch)
        elif start.progress.finished and not start.chosen:
            progress = self._fresh(start.progress.epoch + 1)
        else:
            progress = start.progress
        self.progress = progress
        self._start = None
        self._pass += 1
        return progress

    @property
    def newest_pass(self) -> int:
        """The number of the pass that began last."""
        return self._pass

    def deliver(self, progress: Progress, *, by: int) -> None:
        """Take note of what pass number `by` has handed over."""
        if by == self._pass:
            self.progress = progress
