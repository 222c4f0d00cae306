"""Requests of a storage: each is tried again through faults, within bounds that all of them share.

A request that fails is tried again after a random wait, which doubles with each try, until its
patience is over. Requests for the same thing share one. While the storage is in trouble, the wait
for a first try counts too: what waits behind requests that fail is given up with them. A request
keeps its place between its tries, so a server that is away meets as many requests as it had in
flight, not all that wait for their turn. Tries again have a budget: a few in each second, a share
of the requests that succeed, and two for each one that succeeds after a fault, so that all go on
soon once a server is back. A request that is late is sent a second time, once, within a budget and
the bound of requests at a time; the first answer counts, and the other request is cancelled.

obstore shows no headers, neither in its errors nor elsewhere, and its own tries do not follow a
server's Retry-After either. So that is followed only where the error of another library shows it.
Elsewhere the doubled waits take its place.

obstore's own tries (`RetryConfig`) were measured in place of these. Of nine faults that pass, eight
times each, they survive seven: not an error that comes as 200, nor credentials that have expired. A
stall takes them 0.65 s where it takes 0.41 s here; the others take 0.1 s both ways. They have no
counters, share no patience or budget, send no second request, and fsspec has none of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

from dataporter.errors import DataPorterError, ShardError
from dataporter.shards.storage.faults import (
    LATE,
    NOT_A_RANGE,
    Failure,
    Fault,
    Kind,
    ListCutShortError,
    error_of,
    fault_of,
)
from dataporter.shards.storage.pacing import Bound, Budget, Durations, Patience
from dataporter.shards.storage.stored import Client, StorageOptions, Stored, Url

T = TypeVar("T")

_RETRIES = 0.2  # as a share of the requests that succeed
_RETRIES_PER_SECOND = 2.0
_RETRIES_AFTER_FAULT = 2.0  # for each request that succeeds after a fault
_HEDGES = 0.05  # second requests, as a share of those that succeed
_LATE = 3.0  # times the median
_STUCK = 4.0  # times the time within which 95 % of the requests end
_SLOWEST = 1 << 20  # bytes a second of all requests together, while nothing is known
_NEW_NAME = 15.0  # seconds to wait for the name of a server that never answered
_NEW_KEY = 5.0  # seconds to read credentials again that never worked
_NEW_RANGES = 5  # tries of a server that never sent a range, after which it sends none
_NOTICED = 10.0  # seconds of trouble after which the log warns
_END = frozenset({Kind.ABSENT, Kind.CHANGED, Kind.PERMANENT})
_CREDENTIALS = frozenset({Kind.EXPIRED, Kind.REFUSED, Kind.SKEWED})

_log = logging.getLogger(__name__)


class Requests:
    """The requests of one storage. One that is known has answered before, to another process."""

    def __init__(
        self, client: Client, root: Url, options: StorageOptions, *, is_known: bool = False
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._client = client
        self._root = root
        self._options = options
        self._places = asyncio.Semaphore(options.max_requests)  # a request that waits keeps its own
        self._bound = Bound(options.max_requests)
        self._retries = Budget(burst=options.max_requests, per_second=_RETRIES_PER_SECOND)
        self._hedges = Budget(burst=max(2.0, _HEDGES * options.max_requests))
        self._durations = Durations()
        # A request has succeeded: the place and its credentials were right.
        self._answered = is_known
        self._sends_ranges = is_known  # it has sent one
        self._renewed = 0  # times that credentials were read again
        self._renewing = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None  # of credentials
        self._trouble: _Trouble | None = None  # none if the last request that ended has succeeded
        self._warned = float("-inf")

    async def get(
        self, file: Stored, start: int, stop: int, patience: Patience | None = None
    ) -> memoryview:
        """Return bytes of a file."""
        tried = self._tried(f"bytes {start:,} to {stop:,} of {self._root / file.path}", patience)
        data = await self._run(lambda: self._client.get(file, start, stop), tried, stop - start)
        self._sends_ranges = True
        self.counters["bytes"] += len(data)
        return data

    async def find(self, path: str, patience: Patience | None = None) -> Stored:
        """Return what is known of one file."""
        tried = self._tried(str(self._root / path), patience)
        return await self._run(lambda: self._client.find(path), tried)

    async def list(self, prefix: str) -> list[Stored]:
        """Return every file below a prefix. A page that fails is not the end of those before."""
        what = f"the list of files in {self._root / prefix if prefix else self._root}"
        found: list[Stored] = []
        pages = self._client.pages(prefix, "")
        cut_at: str | None = None  # the last path of a list that was cut short

        async def next_page() -> list[Stored]:
            nonlocal pages, cut_at
            try:
                page: list[Stored] = await anext(pages, [])
                if not page and not found and cut_at is not None:
                    raise ListCutShortError  # noqa: TRY301  it is met as those of the client are
            except BaseException as error:
                ordered = all(a.path < b.path for a, b in pairwise(found))
                last = found[-1].path if found else ""
                is_cut = isinstance(error, ListCutShortError)
                # So no path says where to go on; or the last file was removed meanwhile.
                if not ordered or (is_cut and cut_at == last):
                    found.clear()
                cut_at = last if is_cut else cut_at
                pages = self._client.pages(prefix, found[-1].path if found else "")
                raise
            return page

        while page := await self._run(next_page, self._tried(what), hedge=False):
            found += page
        return list({file.path: file for file in found}.values())

    def _tried(self, what: str, patience: Patience | None = None) -> _Tried:
        return _Tried(what, patience or Patience(self._options.patience))

    async def _run(
        self, call: Callable[[], Awaitable[T]], tried: _Tried, size: int = 0, *, hedge: bool = True
    ) -> T:
        try:
            return await self._try(call, tried, size, hedge=hedge)
        finally:
            tried.patience.ended(tried)

    async def _try(
        self, call: Callable[[], Awaitable[T]], tried: _Tried, size: int, *, hedge: bool
    ) -> T:
        async with self._place(self._places, tried):
            while True:
                try:
                    async with self._place(self._bound, tried):
                        tried.begun = self._since(tried)
                        tried.times += 1
                        tried.renewed = self._renewed
                        answer = await self._once(call, size, tried, hedge=hedge)
                except DataPorterError:
                    raise
                except Exception as error:  # noqa: BLE001  a library may raise anything
                    fault = fault_of(error, self._options)
                    if fault.kind is Kind.NO_RANGES and self._sends_ranges:
                        fault = NOT_A_RANGE
                    if fault == LATE and tried.fault and tried.patience.left <= 0:
                        fault = tried.fault  # its time was up, not that of a server
                else:
                    self._succeeded(tried.times)
                    return answer
                tried.add(fault)
                if fault.kind not in _END:
                    self._trouble = self._trouble or _Trouble(tried.begun, fault)
                if not await self._may_be_tried_again(tried, fault):
                    raise self._given_up(tried)  # outside the handler of a library's error

    @asynccontextmanager
    async def _place(self, places: asyncio.Semaphore | Bound, tried: _Tried) -> AsyncIterator[None]:
        """Wait for a place while there is patience."""
        begun = time.monotonic()
        while True:
            left = self._patience_with(tried)
            if tried.is_due:
                left -= time.monotonic() - (begun if tried.times else self._since(tried))
            if left <= 0:
                raise self._given_up(tried)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(places.__aenter__(), left)
                break
        try:
            yield
        finally:
            await places.__aexit__(None, None, None)

    def _since(self, tried: _Tried) -> float:
        """Return the time from which the patience with a request counts."""
        if tried.times:
            return tried.begun
        # Nobody loses patience in a queue that moves, however long it is.
        return max(tried.begun, time.monotonic() if self._trouble is None else self._trouble.begun)

    def _given_up(self, tried: _Tried) -> ShardError:
        self.counters["failed"] += 1
        fault = tried.fault or (LATE if self._trouble is None else self._trouble.fault)
        seconds, scheme = tried.seconds, self._root.scheme
        others = tried.patience.spent - seconds
        return error_of(Failure(tried.what, scheme, fault, tried.times, seconds, others))

    def _patience_with(self, tried: _Tried) -> float:
        """Return the seconds of patience, which are enough for a try that is due."""
        left = tried.patience.left
        return max(self._options.least_timeout, left) if tried.is_due else left

    async def _once(
        self, call: Callable[[], Awaitable[T]], size: int, tried: _Tried, *, hedge: bool
    ) -> T:
        """Send a request, within a time that doubles with each try that was late."""
        usual = self._durations.quantile(size, 0.95)
        if usual is None:
            longest = self._options.least_timeout + size * self._bound.running / _SLOWEST
        else:
            longest = max(self._options.least_timeout, _STUCK * usual)
        left, tried.is_due = self._patience_with(tried), False
        begun = time.monotonic()
        work = self._hedged(call, size) if hedge else self._send(call)
        answer = await asyncio.wait_for(work, min(left, longest * 2**tried.late))
        self._durations.add(size, time.monotonic() - begun)
        return answer

    async def _hedged(self, call: Callable[[], Awaitable[T]], size: int) -> T:
        """Send a request, and a second one if the first is late. Return the first answer."""
        median = self._durations.quantile(size, 0.5)
        if median is None:
            return await self._send(call)
        sent = {asyncio.ensure_future(self._send(call))}
        try:
            delay = max(self._options.least_delay, _LATE * median)
            done, _ = await asyncio.wait(sent, timeout=delay)
            if not done and self._hedges.take():
                sent.add(asyncio.ensure_future(self._send_second(call)))
            return await _first_answer(sent)
        finally:
            for task in sent:
                task.cancel()
            await asyncio.gather(*sent, return_exceptions=True)

    async def _send(self, call: Callable[[], Awaitable[T]]) -> T:
        self.counters["requests"] += 1
        return await call()

    async def _send_second(self, call: Callable[[], Awaitable[T]]) -> T:
        async with self._bound.first():
            self.counters["hedges"] += 1
            return await self._send(call)

    def _succeeded(self, tries: int) -> None:
        self._answered = True
        self._trouble = None
        self._retries.earn(_RETRIES if tries == 1 else _RETRIES_AFTER_FAULT)
        self._hedges.earn(_HEDGES)
        self._bound.succeeded()

    def _left(self, tried: _Tried, fault: Fault) -> float:
        """Return the seconds for which a request with such a fault is still tried again."""
        if fault.kind in _END or (fault.kind is Kind.REFUSED and not self._answered):
            return 0.0
        if fault.kind is Kind.NO_RANGES and tried.times >= _NEW_RANGES:
            return 0.0
        left = self._patience_with(tried)
        if fault.kind in _CREDENTIALS:
            renewal = self._options.renewal
            return min(left, (renewal if self._answered else _NEW_KEY) - tried.seconds_refused)
        if fault.kind is Kind.UNKNOWN_HOST and not self._answered:
            return min(left, _NEW_NAME - tried.seconds)
        return left

    async def _may_be_tried_again(self, tried: _Tried, fault: Fault) -> bool:
        """Do what helps against a fault, and wait; False if the time or the budget is over."""
        if (left := self._left(tried, fault)) <= 0:
            return False
        longest = min(self._options.longest_wait, self._options.first_wait * 2 ** (tried.times - 1))
        wait = min(left, max(fault.retry_after, random.uniform(0, longest)))
        _log.debug(
            "%s: %s; try %d follows in %.1f s", *(tried.what, fault.words), tried.times + 1, wait
        )
        self._warn_of_trouble(fault, tried.seconds, left)
        if fault.kind is Kind.THROTTLED:
            self.counters["throttled"] += 1
            self._bound.lower(pause=max(longest, fault.retry_after))
        begun = time.monotonic()
        await asyncio.sleep(wait)
        if fault.kind in _CREDENTIALS:
            await self._renew(tried.renewed)
        may = await self._retries.wait(max(0.0, self._left(tried, fault)))
        self.counters["retries"] += may
        self.counters["waited milliseconds"] += round(1000 * (time.monotonic() - begun))
        return may

    async def _renew(self, renewed: int) -> None:
        """Read credentials again, once for all requests that were refused with the same ones.

        If they cannot be read, such as from a file that is half written, the next refusal reads
        them again.
        """
        async with self._renewing:
            is_under_way = self._reading is not None and not self._reading.done()
            if self._renewed != renewed or is_under_way:
                return
            self._renewed += 1
            self.counters["renewed credentials"] += 1
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._client.renew))
            done, _ = await asyncio.wait([self._reading], timeout=self._options.least_timeout)
            if not done or self._reading.exception() is not None:
                _log.debug("the credentials of %s could not be read again", self._root)

    def _warn_of_trouble(self, fault: Fault, passed: float, left: float) -> None:
        now = time.monotonic()
        if passed > _NOTICED and now - self._warned > self._options.patience / 10:
            self._warned = now
            words = "%s has been in trouble for %.0f s: %s. It is tried for %.0f s more."
            _log.warning(words, self._root, passed, fault.words, left)


class _Trouble(NamedTuple):
    """Requests that fail, while none succeeds."""

    begun: float  # when the first of them was asked for
    fault: Fault


@dataclass(eq=False, slots=True)
class _Tried:
    """The tries of one request so far."""

    what: str  # the file and the range
    patience: Patience
    is_due: bool = True  # a try with these credentials is due, however little patience is left
    times: int = 0
    late: int = 0  # tries that got no answer in time
    renewed: int = 0  # times that credentials had been read again before the last try
    begun: float = field(default_factory=time.monotonic)
    fault: Fault | None = None  # the last one
    refused: float | None = None  # when credentials were refused first, if they still are

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def seconds_refused(self) -> float:
        return 0.0 if self.refused is None else time.monotonic() - self.refused

    def add(self, fault: Fault) -> None:
        self.fault = fault
        self.patience.failed(self, self.begun)
        self.late += fault == LATE
        if fault.kind not in _CREDENTIALS:
            self.refused = None
        elif self.refused is None:
            self.refused, self.is_due = time.monotonic(), True


async def _first_answer(sent: set[asyncio.Task[T]]) -> T:
    """Return the first answer of several requests. If all fail, raise the error of the last."""
    waiting = sent
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        answers = [task for task in done if task.exception() is None]
        if answers or not waiting:
            return await (answers or list(done))[0]
