"""The number of workers that keeps up with the consumer, found out while running.

Data does not depend on the number of workers, so it may change at any time: one worker more while
the consumer waits, one fewer when the consumer has not waited for a long time.
"""

from __future__ import annotations

import time

_WINDOW = 16  # batches that are judged together
_WAITS = 0.1  # share of time spent waiting, above which one more worker is wanted
_RESTS = 0.01  # and below which the consumer counts as not waiting
_PATIENCE = 8  # windows without waiting before a worker is let go


class Pace:
    """Decides on the number of workers by how long the consumer waits.

    >>> pace = Pace(most=4)
    >>> [pace.note(waited=1.0, workers=2) for _ in range(16)][-1]
    3
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._began = time.monotonic()
        self._waited = 0.0
        self._batches = 0
        self._resting = 0

    def note(self, waited: float, workers: int) -> int:
        """Note the seconds waited for a batch, and return how many workers there should be."""
        self._waited += waited
        self._batches += 1
        if self._batches < _WINDOW:
            return workers
        share = self._waited / max(time.monotonic() - self._began, 1e-9)
        self._began, self._waited, self._batches = time.monotonic(), 0.0, 0
        self._resting = self._resting + 1 if share < _RESTS else 0
        if share > _WAITS:
            return min(workers + 1, self._most)
        if self._resting >= _PATIENCE:
            self._resting = 0
            return max(workers - 1, 1)
        return workers
