"""Decoders: the threads of a porter that decode blocks into the cache.

As many threads as there are cores serve requests. As many work ahead, with less priority: they
take the blocks that the schedule says are next. A block that is being decoded is not begun again:
whoever asks for it waits for the same job.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ShardCacheError, ShardChangedError, ShardFormatError, StorageError
from dataporter.shards.cache import FULL, BlockCache, NoRoomError
from dataporter.shards.cached_blocks import DamagedBlockError
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index
from dataporter.shards.origin import Load, LocalOrigin, Origin
from dataporter.shards.processes import NOTE, Incoming, Reporter, answer, packed_error
from dataporter.shards.schedule import Lookahead, Need, Standing, bytes_ahead
from dataporter.shards.storage.pacing import Patience
from dataporter.shards.storage.stored import StorageOptions

_log = logging.getLogger(__name__)

_FIRST_LOAD = 32 << 20  # bytes of blocks that are brought ahead at a time, stored and decoded
_MOST_LOAD = 256 << 20  # likewise, when some have come
_REMEMBERED = 60.0  # seconds for which a block that failed is tried only once
_COUNTERS = ("decoded", "bytes", "ahead", "hits", "waits", "waited_ms")
_LOOK = 0.005  # seconds between two looks for room
_COURTESY = 0.05  # seconds that a block waits for readers to let go of others, if it is asked for
_PATIENCE = 2.0  # the same, if it is not, or if the disk is full
_NICE = 5  # of threads that work ahead


class _Waiting(NamedTuple):
    """One who waits for a block."""

    connection: socket.socket
    since: float


@dataclass(eq=False)
class _Job:
    """A block that is decoded, or is going to be."""

    block: int
    patience: Patience
    need: Need | None = None  # the reason, if nobody has asked for it yet
    ahead: Lookahead | None = None
    waiting: list[_Waiting] = field(default_factory=list)
    is_begun: bool = False  # else it waits until less is brought ahead at a time


class Decoders:
    """Threads that decode blocks into the cache."""

    def __init__(
        self,
        index: Index,
        format_: Format,
        folder: Path,
        cache_bytes: int | None,
        cores: int,
        storage: StorageOptions | None,
    ) -> None:
        self._index, self._format = index, format_
        self._origin: Origin
        if storage is None:
            self._origin = LocalOrigin(index, cores)
        else:
            from dataporter.shards.storage.remote_file import StoredOrigin  # noqa: PLC0415  an extra

            self._origin = StoredOrigin(index, format_, storage, cores, self._keep)
        self.cache = BlockCache(folder, self._origin.entries, cache_bytes)
        self._sizes = index.decoded.copy()  # estimates, until a block is decoded
        self._disk_error: OSError | None = None  # the first one, if the disk was full
        self._is_known_small = False  # the user was told that the cache is
        self.stats = dict.fromkeys(_COUNTERS, 0)
        self._load = Load(first=_FIRST_LOAD, most=_MOST_LOAD)

        # Over all of these. An event wakes one thread of many: waking all would cost a core.
        self._changed = threading.Condition(mutex := threading.RLock())  # a block is asked for
        self._announced = threading.Condition(mutex)
        self._jobs: dict[int, _Job] = {}  # by block
        self._requests: deque[_Job] = deque()
        self._failures: dict[int, float] = {}  # when a storage did not give blocks
        self._kept_failures: dict[int, tuple[float, str]] = {}  # of entries beside blocks, and why
        self._touched: dict[int, None] = {}  # blocks that were decoded here, the latest last
        self._news: list[tuple[Incoming, Standing | None]] = []  # announcements, not yet applied
        self._announcements = 0
        self._exhausted = 0  # the number of announcements after which no more is to do ahead

        # An order may take long to find what is next. A request waits for it only to make room.
        self._schedule = threading.Lock()
        self._lookaheads: dict[Incoming, Lookahead] = {}  # by the process that announces
        self._keeping = [threading.Lock() for _ in range(64)]  # of entries beside blocks
        for _ in range(self._origin.threads):
            threading.Thread(target=self._serve_requests, daemon=True).start()
            threading.Thread(target=self._work_ahead, daemon=True).start()
        Reporter(str(index.root), self.statistics, self._waiting, self._tell).start()

    # Called by the main thread

    def request(self, block: int, hits: int, connection: socket.socket) -> None:
        """Answer on a connection when a block is in the cache."""
        now = time.monotonic()
        with self._changed:
            self.stats["waits"] += 1
            self.stats["hits"] += hits
            job = self._jobs.get(block)
            if job is None:
                job = self._jobs[block] = _Job(block, self._patience(block))
            if not job.is_begun:
                self._begin_now(job)
            job.waiting.append(_Waiting(connection, now))

    def _begin_now(self, job: _Job) -> None:
        """Bring a block that was asked for. Callers hold the lock."""
        job.need, job.is_begun = None, True
        self._requests.append(job)
        self._changed.notify()

    def _begin_ahead(self, job: _Job) -> bool:
        """Begin a block that nobody has asked for meanwhile; False if somebody has."""
        with self._changed:
            is_asked, job.is_begun = job.is_begun, True
        return not is_asked

    def _patience(self, block: int) -> Patience:
        """Return the patience with a block. One that a storage has just not given is tried once."""
        passed = time.monotonic() - self._failures.get(block, float("-inf"))
        return Patience(0.0) if passed < _REMEMBERED else self._origin.patience()

    def announce(self, announcer: Incoming, standing: Standing | None) -> None:
        """Take note of where a process stands, or that it is gone."""
        with self._changed:
            self._news.append((announcer, standing))
            self._announcements += 1
            self._announced.notify()

    def statistics(self) -> dict[str, int]:
        with self._changed:
            own = {**self.stats, "evicted": self.cache.evicted, "budget": self.cache.budget}
        return own | self._origin.counters()

    # Threads

    def _serve_requests(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requests)
                job = self._requests.popleft()
            self._run(job)

    def _work_ahead(self) -> None:
        _be_nice()
        while True:
            with self._changed:
                self._announced.wait_for(lambda: self._exhausted != self._announcements)
                announcements = self._announcements
            if job := self._next_ahead():
                with self._changed:
                    self._announced.notify()  # another thread looks for the next one
                block = self._index.block(job.block)
                with self._load.of(block.size + block.decoded):
                    if self._begin_ahead(job):
                        self._run(job)
            else:
                with self._changed:
                    is_first, self._exhausted = not self._exhausted, announcements
                if is_first:
                    with suppress(OSError):  # whoever needs room will say what is wrong
                        self.cache.trim(self._distances(None)[0])

    def _run(self, job: _Job) -> None:
        outcome: bool | BaseException | None
        try:
            outcome = self._decode(job)
        except NoRoomError:
            outcome = None
        except BaseException as error:  # noqa: BLE001  it is raised where the block is needed
            outcome = error
        self._finish(job, outcome)

    def _next_ahead(self) -> _Job | None:
        with self._schedule:
            for ahead in self._up_to_date():
                while need := ahead.next():
                    if self._is_mapped(need.block) or self.cache.holds(need.block):
                        continue
                    with self._changed:
                        if need.block not in self._jobs:
                            patience = self._patience(need.block)
                            job = self._jobs[need.block] = _Job(need.block, patience, need, ahead)
                            return job
        return None

    def _is_mapped(self, block: int) -> bool:
        return self._index.is_local and self._format.is_mapped(self._index.schema(block))

    def _up_to_date(self) -> list[Lookahead]:
        """Apply the announcements. Callers hold the lock of the schedule."""
        with self._changed:
            news, self._news = self._news, []
        for announcer, standing in news:
            if standing is None:
                self._lookaheads.pop(announcer, None)
                continue
            if announcer not in self._lookaheads:
                index, bound = self._index, bytes_ahead(self.cache.budget)
                self._lookaheads[announcer] = Lookahead(index.decoded, bound)
            self._lookaheads[announcer].announce(standing)
        return list(self._lookaheads.values())

    def _decode(self, job: _Job) -> bool:
        """Decode a block; False if another process is decoding it."""
        asked = job.need is None
        begun = time.monotonic()

        def reserve() -> None:
            job.patience.spend(begun)  # in which another process has tried it
            self._reserve(job)

        try:
            size = self.cache.add(
                job.block,
                lambda to: self._write(job, to),
                reserve,
                wait=asked,
                grow=lambda size: self._grow(job, size),
            )
        except OSError as error:
            if error.errno in FULL and not isinstance(error, ShardCacheError):
                raise self._disk_full(error) from error
            raise
        with self._changed:
            self._touched.pop(job.block, None)
            self._touched[job.block] = None
            if size:
                self._sizes[job.block] = size
            self.stats["decoded"] += size > 0
            self.stats["bytes"] += size
            self.stats["ahead"] += size > 0 and not asked
        return size > 0 or self.cache.holds(job.block)

    def _finish(self, job: _Job, outcome: bool | BaseException | None) -> None:
        if outcome is None and job.need is not None and job.ahead is not None:
            with self._schedule:
                job.ahead.refuse(job.need)
        with self._changed:
            # It was asked for meanwhile. What a storage did not give was tried for its whole time.
            is_answer = outcome is True or isinstance(outcome, StorageError)
            if job.need is not None and job.waiting and not is_answer:
                self._begin_now(job)
                return
            del self._jobs[job.block]
            error = packed_error(outcome) if isinstance(outcome, BaseException) else None
            now = time.monotonic()
            self._failures.pop(job.block, None)
            if isinstance(outcome, StorageError):
                self._failures[job.block] = now
            for waiting in job.waiting:
                self.stats["waited_ms"] += round(1000 * (now - waiting.since))
                answer(waiting.connection, (error, None))

    # What others see

    def _waiting(self) -> tuple[int, float]:
        """Count the blocks that others wait for, and the seconds since the first was asked for."""
        with self._changed:
            since = [job.waiting[0].since for job in self._jobs.values() if job.waiting]
        return len(since), time.monotonic() - min(since) if since else 0.0

    def _tell(self, level: int, text: str) -> None:
        """Send a line to one of those who wait."""
        with self._changed:  # answers are sent under it too, so that none is torn
            waiting = [job.waiting[0] for job in self._jobs.values() if job.waiting]
            if waiting:
                answer(waiting[0].connection, (NOTE, (__name__, level, text)))

    # One block

    def _write(self, job: _Job, to: Path) -> None:
        """Decode a block. One that was damaged on its way is brought again."""
        tries = self._origin.tries
        while True:
            try:
                self._write_once(job, to)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                os.truncate(to, 0)
                self._make_room_on_disk(job, error)
            except (ShardFormatError, ShardChangedError) as error:
                tries -= 1
                if not tries:
                    raise
                _log.info("block %s is fetched again: %s", job.block, error)
                for entry in self._origin.shared(job.block):
                    self.cache.drop(entry)
            else:
                return

    def _write_once(self, job: _Job, to: Path) -> None:
        block, schema = self._index.block(job.block), self._index.schema(job.block)
        with self._origin.opened(job.block, job.patience) as file:
            self._format.decode(file, block, schema, to)

    def _reserve(self, job: _Job) -> None:
        """Reserve room for a block, and wait until it is there."""
        size = int(self._sizes[job.block])
        try:
            self.cache.reserve(job.block, size, *self._distances(job))
        except NoRoomError:
            if job.need is not None:
                raise
            self._reserve_in_little_room(job.block, size)
        self._wait_for_readers(job)

    def _reserve_in_little_room(self, block: int, size: int) -> None:
        """Reserve room for a block that was asked for. It waits for others in the making."""
        while True:
            try:
                self.cache.reserve(block, size, *self._distances(None, reading=block))
            except NoRoomError as error:
                if not error.reserved:
                    raise self._too_small(error.missing) from None
                time.sleep(_LOOK)
                self.cache.remove_leftovers()  # a killed process may have reserved the room
            else:
                break
        if not self._is_known_small and self._disk_error is None:
            self._is_known_small = True
            _log.warning(
                "The cache holds the blocks that are read at a time, but not those of all batches "
                "on their way: these need %s bytes, and cache_bytes is %s. Blocks may come late or "
                "be decoded again. Pass cache_bytes=%s or more.",
                *(f"{(needed := self._most_in_use()):,}", f"{self.cache.budget:,}", needed),
            )

    def _wait_for_readers(self, job: _Job) -> None:
        """Wait until readers have let go of what was evicted, or make up for those that do not.

        If that is not enough, a block that somebody waits for takes more than the budget.
        """
        asked, began = job.need is None, time.monotonic()
        while self.cache.excess() > 0:
            asked = asked or bool(job.waiting)
            if time.monotonic() - began > (_COURTESY if asked else _PATIENCE):
                distances, _ = self._distances(job)
                with self._schedule:
                    at = max((ahead.reach() for ahead in self._up_to_date()), default=0)
                if not (self.cache.make_up(distances, at) or asked):
                    raise NoRoomError(missing=0, reserved=0)
                return
            time.sleep(_LOOK)

    def _grow(self, job: _Job, size: int) -> None:
        """Reserve the room that a block takes, which was estimated too low."""
        self._sizes[job.block] = size  # also for the next time
        self._reserve(job)

    def _distances(
        self, job: _Job | None, reading: int | None = None
    ) -> tuple[NDArray[np.int64], int]:
        """Count the positions to the next use of each block, and of the block of a job.

        From where the block `reading` is read, if there is one.
        """
        with self._schedule:
            lookaheads = self._up_to_date()
            found = (ahead.distances(reading) for ahead in lookaheads)
            known = [far for far in found if far is not None]
            if known:
                at = job.ahead.distance(job.need) if job and job.ahead and job.need else 0
                return self._origin.distances(np.minimum.reduce(known)), at
        with self._changed:  # without an order, the latest are used again soonest
            ages = np.full(len(self._index.rows), 1 + len(self._touched), np.int64)
            for age, block in enumerate(reversed(self._touched), start=1):
                ages[block] = age
        return self._origin.distances(ages), 0

    def _keep(
        self, entry: int, size: int, write: Callable[[Path], None], patience: Patience
    ) -> memoryview | None:
        """Return what is kept beside blocks, and make it first; None if there is no room."""
        begun = time.monotonic()

        def reserve() -> None:
            patience.spend(begun)
            self._reserve_now(entry, size)

        with self._keeping[entry % len(self._keeping)]:
            if not self.cache.holds(entry):
                failed, words = self._kept_failures.get(entry, (float("-inf"), ""))
                if failed >= patience.made:
                    raise StorageError(words)
                try:
                    self.cache.add(entry, write, reserve, wait=True)
                except NoRoomError:
                    return None
                except StorageError as error:
                    self._kept_failures[entry] = time.monotonic(), str(error)
                    raise
            with suppress(DamagedBlockError):
                return self.cache.map(entry)
            self.cache.drop(entry)
            return None

    def _reserve_now(self, entry: int, size: int) -> None:
        distances, _ = self._distances(None)
        self.cache.reserve(entry, size, distances, 0)

    def _make_room_on_disk(self, job: _Job, error: OSError) -> None:
        """Evict blocks when the disk is full, and keep to what it holds from now on."""
        end = time.monotonic() + _PATIENCE
        removed, mapped = self.cache.remove_evicted()
        while mapped and not removed and time.monotonic() < end:
            time.sleep(_LOOK)
            removed, mapped = self.cache.remove_evicted()
        if removed:
            return
        if not self.cache.shrink():
            raise self._disk_full(error) from error
        with self._changed:
            if self._disk_error is None:
                self._disk_error = error
                _log.warning(
                    "The disk of %s is full. Decoded blocks keep to %s bytes from now on, and "
                    "others are evicted.",
                    *(self.cache.folder, f"{self.cache.budget:,}"),
                )
        self._reserve(job)

    def _most_in_use(self) -> int:
        """Return the bytes of a cache that decodes each block once an epoch."""
        with self._changed:
            known = list(self._touched)
        sizes, estimates = self._sizes, np.maximum(self._index.decoded, 1)
        larger = float((sizes[known] / estimates[known]).max(initial=1.0))
        expected = np.ceil(estimates * larger).astype(np.int64)
        expected[known] = sizes[known]
        with self._schedule:
            return max((ahead.most_in_use(expected) for ahead in self._up_to_date()), default=0)

    def _too_small(self, missing: int) -> ShardCacheError:
        """Say how many bytes the blocks in use need."""
        if self._disk_error is not None:
            return self._disk_full(self._disk_error)
        needed = max(self.cache.budget + missing, self._most_in_use())
        msg = (
            f"The cache is too small: blocks in use need {needed:,} bytes, and cache_bytes is "
            f"{self.cache.budget:,}. Pass cache_bytes={needed} or more (on several nodes, each "
            f"needs its share), and cache= a folder on a larger disk if {self.cache.folder} has no "
            "room."
        )
        return ShardCacheError(errno.ENOSPC, msg)

    def _disk_full(self, error: OSError) -> ShardCacheError:
        sizes = np.abs(self.cache.sizes())
        needed = int(sizes.sum()) + int(self._index.decoded.max())
        msg = (
            f"The disk of {self.cache.folder} is full, and all decoded blocks on it are in use: "
            f"they and the next one need {needed:,} bytes. Free some space, or pass cache= a "
            "folder on a larger disk."
        )
        return ShardCacheError(error.errno, msg)


def _be_nice() -> None:
    """Let workers and requests have the cores first: this thread works ahead."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
