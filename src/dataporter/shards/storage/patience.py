"""The patience with a storage: how long the requests for one block are tried again, all together.

A block may take several requests, one after the other or at a time: the footer of its file, its
data in parts, an index beside it. Time in which at least one of them fails is taken from the
patience. Time in which all is well is not, since a large block may take long over a slow link.
"""

from __future__ import annotations

import time
from collections.abc import Hashable


class Patience:
    """Seconds of trouble that the requests for one thing may have.

    >>> patience = Patience(300.0)
    >>> patience.failed("a request", begun=time.monotonic() - 100.0)
    >>> patience.failed("another one", begun=time.monotonic() - 120.0)
    >>> patience.ended("a request"), patience.ended("another one")
    (None, None)
    >>> round(patience.spent), round(patience.left)
    (120, 180)
    """

    def __init__(self, seconds: float) -> None:
        self.made = time.monotonic()
        self._seconds = seconds
        self._spent = 0.0
        self._failing: set[Hashable] = set()  # requests that have failed, and are tried again
        self._since = 0.0  # when the first of them began
        self._counted = float("-inf")  # the end of the trouble that is in `_spent`

    @property
    def spent(self) -> float:
        """The seconds of trouble so far."""
        now = max(0.0, time.monotonic() - self._since) if self._failing else 0.0
        return self._spent + now

    @property
    def left(self) -> float:
        """The seconds of trouble that are left; below 0 if there were more."""
        return self._seconds - self.spent

    def spend(self, begun: float) -> None:
        """Count the time since then, in which others have tried the same."""
        self._spent += time.monotonic() - begun

    def failed(self, request: Hashable, begun: float) -> None:
        """Count the time from the beginning of a request that has failed until it ends."""
        if request not in self._failing:
            begun = max(begun, self._counted)
            self._since = min(self._since, begun) if self._failing else begun
            self._failing.add(request)

    def ended(self, request: Hashable) -> None:
        """Count no more of a request: it has succeeded, or is given up."""
        spent = self.spent
        self._failing.discard(request)
        if not self._failing:
            self._spent, self._counted = spent, time.monotonic()
