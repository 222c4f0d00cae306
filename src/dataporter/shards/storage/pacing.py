"""Limits of requests to a storage: how many at a time, how many again, and for how long.

A bound falls under throttling. Bounds and budgets belong to one event loop.

Patience is how long the requests for one block are tried again, all together. A block may take
several requests, one after the other or at a time: the footer of its file, its data in parts, an
index beside it. Time in which at least one of them fails is taken from the patience. Time in which
all is well is not, since a large block may take long over a slow link.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from types import TracebackType


class Bound:
    """A bound of requests in flight: halved by a throttled one, raised again by successes.

    >>> bound = Bound(32)
    >>> bound.lower(pause=1.0)
    >>> bound.lower(pause=1.0)  # the same burst of answers
    >>> bound.limit
    16
    >>> for _ in range(16):
    ...     bound.succeeded()
    >>> bound.limit
    17
    """

    def __init__(self, most: int) -> None:
        self.limit = most
        self.running = 0
        self._most = most
        self._successes = 0  # since the limit changed
        self._lowered = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    def lower(self, pause: float) -> None:
        """Halve the bound, at most once in a pause."""
        if time.monotonic() - self._lowered >= pause:
            self._lowered = time.monotonic()
            self.limit = max(1, self.limit // 2)
            self._successes = 0

    def succeeded(self) -> None:
        """Count a success: as many as run at a time raise the bound by one."""
        self._successes += 1
        if self._successes >= self.limit < self._most:
            self.limit += 1
            self._successes = 0

    @asynccontextmanager
    async def first(self) -> AsyncIterator[None]:
        """Take the next place that is free, before all others that wait."""
        await self._enter(is_first=True)
        try:
            yield
        finally:
            self._leave()

    async def __aenter__(self) -> None:
        await self._enter(is_first=False)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    async def _enter(self, *, is_first: bool) -> None:
        if self.running < self.limit and (is_first or not self._waiting):
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if is_first else self._waiting.append)(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        self.running -= 1
        while self._waiting and self.running < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                self.running += 1
                turn.set_result(None)


class Budget:
    """Requests beyond the first tries. They are earned by requests that succeed.

    Some of them are allowed at once, and some in each second, since in an outage nothing succeeds.

    >>> budget = Budget(burst=1)
    >>> budget.take(), budget.take()
    (True, False)
    >>> budget.earn(0.5), budget.earn(0.5), budget.take()
    (None, None, True)
    """

    def __init__(self, *, burst: float, per_second: float = 0.0) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = burst
        self._counted = time.monotonic()

    def earn(self, requests: float) -> None:
        """Allow more requests, or a part of one."""
        self._left = min(self._burst, self._left + requests)

    def take(self) -> bool:
        """Take one request out of the budget, if it has one."""
        now = time.monotonic()
        passed = self._per_second * (now - self._counted)
        self._left, self._counted = min(self._burst, self._left + passed), now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def wait(self, seconds: float) -> bool:
        """Wait until the budget has a request, and take it; False if it has none for so long."""
        end = time.monotonic() + seconds
        while not self.take():
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(min(0.1, 1 / self._per_second))
        return True


class Durations:
    """The durations of recent requests, by the order of their size.

    >>> durations = Durations()
    >>> for milliseconds in range(100, 200):
    ...     durations.add(1 << 20, milliseconds / 1000)
    >>> durations.quantile(1 << 20, 0.5), durations.quantile(1 << 10, 0.5)
    (0.168, None)
    """

    _KEPT = 64  # of one order
    _ENOUGH = 8

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}

    def add(self, size: int, seconds: float) -> None:
        """Count a request for so many bytes."""
        order = size.bit_length() // 2
        self._recent.setdefault(order, deque(maxlen=self._KEPT)).append(seconds)

    def quantile(self, size: int, share: float) -> float | None:
        """Return the time within which a share of such requests ended; None if too few did."""
        recent = sorted(self._recent.get(size.bit_length() // 2, ()))
        return recent[int(share * len(recent))] if len(recent) >= self._ENOUGH else None


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
