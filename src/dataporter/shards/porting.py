"""The porter: the process that decodes blocks for one rank's main process and its workers.

`Porter` starts it as `python -m dataporter.shards.porting`, with a socket that listens already as
its argument and the dataset as its standard input. It imports no torch. Three kinds of threads:

- the main thread reads messages and answers all that needs no decoding;
- decoders take requests first, then blocks that the schedule says are next;
- no more decoders work ahead than there are cores, and one more waits for requests.

It ends when no process has been connected for a while. Whatever it held is in the cache, or is
decoded again: a new porter may follow it at any time.
"""

from __future__ import annotations

import errno
import os
import pickle
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ShardCacheError, ShardChangedError
from dataporter.shards.cache import FULL, BlockCache, NoRoomError
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index
from dataporter.shards.messages import Incoming, is_ours, pack, packed_error
from dataporter.shards.schedule import Lookahead, Need, Standing

LINGER = 3.0  # seconds without a connection after which a porter ends
_AHEAD_BYTES = 4 << 30  # at most are decoded ahead, and at most a quarter of the cache
_PATIENCE = 0.02  # seconds between two looks for room
_NICE = 5  # of decoders that work ahead: workers and requests come first


@dataclass(eq=False)
class _Job:
    """A block that is decoded, or is going to be."""

    block: int
    need: Need | None = None  # the reason, if nobody has asked for it yet
    ahead: Lookahead | None = None
    waiting: list[socket.socket] = field(default_factory=list)


class _Decoders:
    """Threads that decode blocks into the cache."""

    def __init__(
        self, index: Index, format_: Format, folder: Path, cache_bytes: int | None, cores: int
    ) -> None:
        self._index, self._format, self._cores = index, format_, cores
        self.cache = BlockCache(folder, len(index.rows), cache_bytes)
        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}  # by block
        self._requests: deque[_Job] = deque()
        self._working_ahead = 0
        self._lookaheads: dict[Incoming, Lookahead] = {}  # by the process that announces
        self._touched: dict[int, None] = {}  # blocks that were decoded here, the latest last
        self._notes: list[str] = []  # for the user, with the next answer
        self._is_full = False
        self.stats = {"decoded": 0, "bytes": 0, "ahead": 0, "hits": 0, "waits": 0}
        for _ in range(self._cores + 1):
            threading.Thread(target=self._work, daemon=True).start()

    # Called by the main thread

    def request(self, block: int, connection: socket.socket) -> None:
        """Answer on a connection when a block is in the cache."""
        with self._changed:
            self.stats["waits"] += 1
            job = self._jobs.get(block)
            if job is None:
                job = self._jobs[block] = _Job(block)
            if not job.waiting and job.need is None:
                self._requests.append(job)
            job.waiting.append(connection)
            self._changed.notify()

    def announce(self, announcer: Incoming, standing: Standing) -> None:
        with self._changed:
            if announcer not in self._lookaheads:
                bound = min(_AHEAD_BYTES, self.cache.budget // 4)
                index = self._index
                self._lookaheads[announcer] = Lookahead(index.ends, index.decoded, bound)
            self._lookaheads[announcer].announce(standing)
            self._changed.notify_all()

    def forget(self, announcer: Incoming) -> None:
        with self._changed:
            self._lookaheads.pop(announcer, None)

    def statistics(self) -> dict[str, int]:
        with self._changed:
            return {**self.stats, "evicted": self.cache.evicted, "budget": self.cache.budget}

    # Threads

    def _work(self) -> None:
        while True:
            job = self._take()
            if job.need is not None:
                _be_nice(_NICE)
            try:
                outcome = self._decode(job)
            except NoRoomError:
                outcome = None
            except BaseException as error:  # noqa: BLE001  it is raised where the block is needed
                outcome = error
            if job.need is not None:
                _be_nice(0)
            self._finish(job, outcome)

    def _take(self) -> _Job:
        with self._changed:
            while True:
                if self._requests:
                    return self._requests.popleft()
                if self._working_ahead < self._cores and (job := self._next_ahead()):
                    self._working_ahead += 1
                    return job
                self._changed.wait()

    def _next_ahead(self) -> _Job | None:
        for ahead in self._lookaheads.values():
            while need := ahead.next():
                if need.block not in self._jobs and not self.cache.holds(need.block):
                    job = self._jobs[need.block] = _Job(need.block, need, ahead)
                    return job
        return None

    def _decode(self, job: _Job) -> bool:
        """Decode a block; False if another process is decoding it."""
        asked = job.need is None
        try:
            size = self.cache.add(
                job.block, lambda to: self._write(job, to), lambda: self._reserve(job), wait=asked
            )
        except OSError as error:
            if error.errno in FULL and not isinstance(error, ShardCacheError):
                raise self._disk_full(error) from error
            raise
        with self._changed:
            self._touched.pop(job.block, None)
            self._touched[job.block] = None
            self.stats["decoded"] += size > 0
            self.stats["bytes"] += size
            self.stats["ahead"] += size > 0 and not asked
        return size > 0 or self.cache.holds(job.block)

    def _finish(self, job: _Job, outcome: bool | BaseException | None) -> None:
        with self._changed:
            if job.need is not None:
                self._working_ahead -= 1
                if outcome is None and job.ahead is not None:
                    job.ahead.refuse(job.need)
                if job.waiting and outcome is not True:  # it was asked for meanwhile
                    job.need = None
                    self._requests.append(job)
                    self._changed.notify()
                    return
            del self._jobs[job.block]
            notes, self._notes = (self._notes, []) if job.waiting else ([], self._notes)
            self._changed.notify()
        error = packed_error(outcome) if isinstance(outcome, BaseException) else None
        for connection in job.waiting:
            with suppress(OSError):  # it has gone, and will ask again if it is still needed
                connection.sendall(pack((error, notes)))

    # One block

    def _write(self, job: _Job, to: Path) -> None:
        path, block = self._index.path(job.block), self._index.block(job.block)
        schema = self._index.schema(job.block)
        while True:
            self._check_unchanged(job.block)
            try:
                self._format.decode(path, block, schema, to)
            except OSError as error:
                self._check_unchanged(job.block)
                if error.errno not in FULL:
                    raise
                self._make_room_on_disk(job, error)
            else:
                break
        self._check_unchanged(job.block)

    def _check_unchanged(self, block: int) -> None:
        path, file = self._index.path(block), int(self._index.file[block])
        try:
            status = path.stat()
        except FileNotFoundError:
            msg = f"{path} was removed since it was indexed. Put it back, or index the data again."
            raise ShardChangedError(msg) from None
        found = (status.st_size, status.st_mtime_ns)
        expected = (int(self._index.sizes[file]), int(self._index.modified[file]))
        if found != expected:
            msg = (
                f"{path} was changed since it was indexed: {found[0]:,} bytes, modified at "
                f"{found[1]} ns, expected {expected[0]:,} bytes, modified at {expected[1]} ns. "
                "Put the file back, or index the data again."
            )
            raise ShardChangedError(msg)

    def _reserve(self, job: _Job) -> None:
        """Reserve room for a block. A block that was asked for waits for others in the making."""
        size = int(self._index.decoded[job.block])
        while True:
            distances, at = self._distances(job)
            try:
                self.cache.reserve(job.block, size, distances, at)
            except NoRoomError as error:
                if job.need is not None:
                    raise
                if not error.reserved:
                    raise self._too_small(error.missing) from None
                time.sleep(_PATIENCE)
            else:
                return

    def _distances(self, job: _Job) -> tuple[NDArray[np.int64], int]:
        """Count the positions to the next use of each block, and of the block of a job."""
        with self._changed:
            lookaheads = list(self._lookaheads.values())
            known = [far for ahead in lookaheads if (far := ahead.distances()) is not None]
            if not known:  # the latest are used again soonest
                recent = np.full(len(self._index.rows), 1 + len(self._touched), np.int64)
                for age, block in enumerate(reversed(self._touched), start=1):
                    recent[block] = age
                return recent, 0
            at = 0
            if job.need is not None and job.ahead is not None:
                at = job.ahead.distance(job.need)
        return np.minimum.reduce(known), at

    def _too_small(self, missing: int) -> ShardCacheError:
        needed = self.cache.budget + missing
        msg = (
            f"the cache is too small: blocks in use need {needed:,} bytes, and cache_bytes is "
            f"{self.cache.budget:,}. Pass cache_bytes={needed} or more, and cache= a folder on a "
            f"larger disk if {self.cache.folder} has no room."
        )
        return ShardCacheError(errno.ENOSPC, msg)

    def _make_room_on_disk(self, job: _Job, error: OSError) -> None:
        """Evict blocks when the disk is full, and keep to what it holds from now on."""
        self.cache.shrink()
        distances, at = self._distances(job)
        try:
            self.cache.reserve(job.block, int(self._index.decoded[job.block]), distances, at)
        except NoRoomError:
            if job.need is not None:
                raise
            raise self._disk_full(error) from error
        with self._changed:
            if not self._is_full:
                self._is_full = True
                self._notes.append(
                    f"The disk of {self.cache.folder} is full. Decoded blocks keep to "
                    f"{self.cache.budget:,} bytes from now on, and others are evicted."
                )

    def _disk_full(self, error: OSError) -> ShardCacheError:
        folder = self.cache.folder
        msg = (
            f"the disk of {folder} is full: {error.strerror or error}. No block can be evicted "
            "that is not in use. Free some space, or pass cache= a folder on a larger disk."
        )
        return ShardCacheError(error.errno, msg)


def _be_nice(level: int) -> None:
    """Give this thread a priority. The system may refuse to raise it again."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), level)


class _Server:
    """The main thread: reads messages, and ends the process when nobody is there."""

    def __init__(self, listener: socket.socket, decoders: _Decoders | bytes) -> None:
        self._listener = listener
        self._decoders = decoders  # or the error that kept them from starting
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._clients: set[Incoming] = set()
        self._standings: dict[Incoming, Any] = {}  # the order of each process that announces
        self._linger = LINGER

    def serve(self) -> None:
        """Serve until no process has been connected for a while."""
        while True:
            events = self._selector.select(None if self._clients else self._linger)
            if not events and not self._clients:
                return
            for key, _ in events:
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not is_ours(connection):
            connection.close()
            return
        client = Incoming(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, client: Incoming) -> None:
        messages = client.receive()
        if messages is None:
            self._drop(client)
            return
        for kind, *values in messages:
            if kind == "leave":  # the main process has closed its dataset
                self._linger = 0.0
            elif isinstance(self._decoders, bytes):
                if kind != "announce":
                    with suppress(OSError):
                        client.connection.sendall(pack((self._decoders, [])))
            else:
                self._handle(self._decoders, client, kind, values)

    def _handle(self, decoders: _Decoders, client: Incoming, kind: str, values: list[Any]) -> None:
        if kind == "block":
            block, hits = values
            decoders.stats["hits"] += hits
            decoders.request(block, client.connection)
        elif kind == "announce":
            has_order, plan, epoch, start, stop = values
            if has_order:
                self._standings[client] = client.attachment()
            order = self._standings[client]
            decoders.announce(client, Standing(order, plan, epoch, start, stop))
        elif kind == "stats":
            with suppress(OSError):
                client.connection.sendall(pack((None, decoders.statistics())))

    def _drop(self, client: Incoming) -> None:
        self._selector.unregister(client.connection)
        self._clients.discard(client)
        self._standings.pop(client, None)
        if not isinstance(self._decoders, bytes):
            self._decoders.forget(client)
        client.close()


def main() -> None:
    """Be a porter: the listening socket is the argument, the pickled arguments of `_Decoders` the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when those whom it serves have ended
    listener = socket.socket(fileno=int(sys.argv[1]))
    decoders: _Decoders | bytes
    try:
        decoders = _Decoders(*pickle.load(sys.stdin.buffer))  # noqa: S301  from our own user
    except BaseException as error:  # noqa: BLE001  it is raised where a block is needed
        decoders = packed_error(error)
    _Server(listener, decoders).serve()
    listener.close()  # from here on others start a new porter
    if not isinstance(decoders, bytes):
        decoders.cache.abandon()
    os._exit(0)  # without waiting for decoders


if __name__ == "__main__":
    main()
