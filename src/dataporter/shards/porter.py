"""The client of a porter: finds decoded blocks, and asks for those that are missing.

A block that is in the cache costs no message. Else the porter is asked, and is started first if
there is none: by the main process of a rank, or by any of its workers after a kill. The one that
can bind the porter's address starts it, with the socket listening already, so nobody has to wait
until it is up: connections and messages wait in the system. Its address is an abstract name on
Linux, of which nothing is left when it dies.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from dataporter.errors import ShardCacheError, ShardError, UnsupportedSystemError
from dataporter.law import Order, Plan
from dataporter.shards.cached_blocks import CachedBlocks, DamagedBlockError
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index
from dataporter.shards.opening import Survey
from dataporter.shards.places import cache_folder, entries_of, is_shared
from dataporter.shards.processes import (
    Process,
    attached,
    collect_ended,
    has_arrived,
    is_note,
    is_ours,
    last_words,
    pack,
    receive,
    received,
    start_process,
)
from dataporter.shards.storage.stored import StorageOptions
from dataporter.system.memory import unnamed_file
from dataporter.system.processes import usable_cores

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

_DEATHS = 10  # of porters, one after the other, over the same block
_TRIES = 100  # to map a block that others evict again and again
_BACKLOG = 1024  # connections that wait for a porter to come up; the system may allow fewer
_MOMENT = 0.2  # seconds that a porter gets to end
_LONG = 5.0  # the same, if its folder is removed then
_PATIENCE = 5.0  # seconds that a porter gets to tell its counters
_PAUSE = 0.005  # seconds between two tries to connect

_log = logging.getLogger(__name__)

# Sockets that a forked child must not hold: a porter sees the end of a process by its connection,
# and its address is free only when nobody holds the listening socket.
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_inherited() -> None:
    for inherited in list(_sockets):
        inherited.close()
    _sockets.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


class Porter:
    """Decoded blocks of a dataset, brought by a process of their own.

    It can be pickled and forked: all copies share one porter, which starts when it is first
    needed. `folder` is the cache, a folder of the user's cache folder unless given. `cache_bytes`
    bounds what this dataset takes up there: half of the free disk unless given. `leaf` is the name
    by which orders know the dataset.
    """

    def __init__(
        self,
        index: Index,
        format: Format,  # noqa: A002  it is the word
        *,
        folder: Path | None = None,
        cache_bytes: int | None = None,
        storage: StorageOptions | None = None,
        leaf: str = "",
    ) -> None:
        if fcntl is None:
            msg = (
                "files that have to be decoded need a system with file locks, Linux or macOS. Use "
                "files that can be mapped: Arrow, plain JSON lines, tar, MDS or tokens."
            )
            raise UnsupportedSystemError(msg)
        if isinstance(index.root, Path):
            index = replace(index, root=index.root.absolute())
        elif storage is None:
            storage = StorageOptions()
        self._index = index
        self._storage = storage
        self._format = format
        self._leaf = leaf
        self._cache_bytes = cache_bytes
        self._folder = cache_folder(folder, index, format)
        self._address = _new_address()
        self._since = time.time_ns()
        self._prepare(is_copy=False)

    def _prepare(self, *, is_copy: bool) -> None:
        self.readers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._blocks = CachedBlocks(self._folder, entries_of(self._index), self._since)
        self._state = _Connections()
        self._hits = 0
        # The process that made the dataset ends the porter; a copy only leaves.
        address = None if is_copy else self._address
        own = None if is_copy or is_shared(self._folder) else self._folder
        weakref.finalize(self, _leave, os.getpid(), self._state, address, own)

    def __getstate__(self) -> dict[str, Any]:
        own = ("_index", "_format", "_cache_bytes", "_storage", "_folder", "_address", "_since")
        return {name: getattr(self, name) for name in (*own, "_leaf")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare(is_copy=True)

    # Blocks

    def path(self, block: int) -> Path:
        """Return the file of a decoded block, after waiting for it if need be.

        It may be evicted at any time. `map` is safe from that.
        """
        if self._blocks.holds(block):
            self._hits += 1
        else:
            self._ask("block", block, self._hits)
            self._hits = 0
        return self._blocks.path(block)

    def evictions(self) -> int:
        """Count evictions: another number than before says that blocks may be gone."""
        return self._blocks.evictions()

    def is_gone(self, block: int) -> bool:
        """Return True if a block that was mapped here has been evicted or replaced since."""
        return self._blocks.is_gone(block)

    def _let_go(self) -> None:
        """Close blocks that were evicted: as long as they are mapped, they take up the disk."""
        for reader in list(self.readers):
            reader.let_go()

    def map(self, block: int) -> memoryview:
        """Map the file of a decoded block. The map stays valid when the block is evicted."""
        for _ in range(_TRIES):
            self.path(block)
            try:
                if (mapped := self._blocks.map(block)) is not None:
                    return mapped
            except DamagedBlockError:
                _log.warning("block %s in %s is damaged: it is made again", block, self._folder)
                self.renew(block)
        msg = (
            f"Block {block} was evicted {_TRIES} times before it could be read: the jobs that "
            f"share {self._folder} need more bytes than they were given. Pass a larger "
            "cache_bytes=, or another folder as cache= for one of them."
        )
        raise ShardCacheError(errno.ENOSPC, msg)

    def renew(self, block: int) -> None:
        """Decode a block again, whose file is damaged, and wait for it."""
        self._ask("renew", block)

    def announce(self, order: Order, epoch: int, start: int, stop: int, plan: Plan) -> None:
        """Say which steps are next, so that their blocks are decoded ahead.

        It never waits. An announcement that cannot be sent is lost, and costs only time.
        """
        for reader in list(self.readers):
            reader.announced(epoch)
        identity = (order.id, order.seed, order.length)
        with suppress(OSError, ShardError):  # `path` will say what is wrong
            for _ in range(2):  # the second time if the porter has died meanwhile
                connection = self._connection()
                try:
                    while has_arrived(connection):
                        is_note(*receive(connection))
                except ConnectionError:
                    self._state.disconnect()
                    continue
                has_order = self._state.announced != identity
                message = pack(("announce", has_order, plan, epoch, start, stop, self._leaf))
                if _sent_at_once(connection, message, order if has_order else None):
                    self._state.announced = identity
                    return
                self._state.disconnect()

    def stats(self) -> dict[str, int]:
        """Return the porter's counters, of all processes that it serves; none if there is none.

        A connection of its own asks for them, so a signal handler may, while a block is awaited.
        """
        connection = _Connection(socket.AF_UNIX)
        _sockets.add(connection)
        try:
            connection.settimeout(_PATIENCE)
            connection.connect(self._address)
            if not is_ours(connection):
                return {}
            connection.sendall(pack(("stats",)))
            error, counters = received(connection)
        except OSError:  # none has started, or it is about to end
            return {}
        finally:
            connection.close()
        if error is not None:
            return {}
        return {**counters, "hits": counters["hits"] + self._hits}

    def close(self) -> None:
        """End the porter, as soon as no other process is connected to it."""
        _leave(os.getpid(), self._state, self._address)

    # Messages

    def _ask(self, *message: Any) -> Any:
        """Send a message and wait for the answer, however many porters die meanwhile."""
        for _ in range(_DEATHS):
            connection = self._connection()
            try:
                connection.sendall(pack(message))
                error, answer = received(connection, self._let_go)
            except ConnectionError:
                self._state.disconnect()
                continue
            except BaseException:  # an interrupt: the answer is still on its way
                self._state.disconnect()
                raise
            if error is not None:
                raise pickle.loads(error)  # noqa: S301  from a process of our own user
            return answer
        raise self._died(message)

    def _died(self, message: tuple[Any, ...]) -> ShardError:
        what = ""
        if message[0] in {"block", "renew"}:
            what = f" while decoding block {message[1]} of {self._index.path(message[1])}"
        return ShardError(
            f"The porter process died {_DEATHS} times in a row{what}. "
            f"{last_words(self._state.words)}It may have been killed for lack of memory."
        )

    def _connection(self) -> socket.socket:
        """Return this thread's connection to the porter, which is started if there is none."""
        connection = self._state.current
        if connection is not None and connection.fileno() >= 0:
            return connection
        self._state.disconnect()
        while True:
            connection = _Connection(socket.AF_UNIX)
            _sockets.add(connection)
            try:
                connection.connect(self._address)
            except (ConnectionRefusedError, FileNotFoundError):
                connection.close()
                self._start()
            except BlockingIOError:  # too many wait for it to come up
                connection.close()
                time.sleep(_PAUSE)
            else:
                break
        if not is_ours(connection):
            connection.close()
            msg = "Another user's process has taken the address of the porter. Start again."
            raise ShardError(msg)
        self._state.current = connection
        return connection

    # The process

    def start_from(self, survey: Survey) -> None:
        """Let the process that has opened the dataset be the first porter."""
        with suppress(OSError, ShardError), self._listening() as listener:
            if listener is None:
                return
            with self._given() as given:
                if survey.become_porter(listener, given):
                    self._state.process, self._state.words = survey.process, survey.words

    def _start(self) -> None:
        """Start the porter, unless another process is just doing so."""
        try:
            with self._listening() as listener:
                if listener is None:
                    time.sleep(_PAUSE)
                    return
                self._state.reap(_MOMENT)  # one that has closed its address is about to end
                with self._given() as given:
                    self._state.words = os.fdopen(unnamed_file(), "w+b")
                    self._state.process = start_process(
                        *("dataporter.shards.porting", listener, given, self._state.words),
                        is_apart=True,
                    )
        except OSError as error:
            msg = f"The porter process cannot start: {error.strerror or error}."
            raise ShardError(msg) from error

    @contextmanager
    def _listening(self) -> Iterator[socket.socket | None]:
        """Listen at the porter's address for a moment; None if another process does."""
        with socket.socket(socket.AF_UNIX) as listener:
            _sockets.add(listener)
            with _start_lock(self._address) as is_free:
                is_bound = is_free and _bound(listener, self._address)
            yield listener if is_bound else None

    def _given(self) -> IO[bytes]:
        """Pickle what a porter has to know."""
        level = logging.getLogger("dataporter").getEffectiveLevel()
        dataset = (
            *(self._index, self._format, self._folder, self._cache_bytes),
            *(usable_cores(), self._storage),
        )
        return attached((level, dataset))


class _Connection(socket.socket):
    """A connection of one thread. It closes itself with the thread, without a warning."""

    def __del__(self) -> None:
        self.close()


class _Connections:
    """The connections of this process's threads to the porter, and the porter it started."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self.process: Process | None = None
        self.words: IO[bytes] | None = None  # what the porter printed

    @property
    def current(self) -> socket.socket | None:
        return getattr(self._of_thread, "connection", None)

    @current.setter
    def current(self, connection: socket.socket) -> None:
        self._of_thread.connection = connection
        self.announced = None

    @property
    def announced(self) -> Any:
        """The order that the current connection has been told."""
        return getattr(self._of_thread, "announced", None)

    @announced.setter
    def announced(self, order: Any) -> None:
        self._of_thread.announced = order

    def disconnect(self) -> None:
        if (connection := self.current) is not None:
            connection.close()
            del self._of_thread.connection

    def reap(self, seconds: float) -> None:
        """Wait a moment for the end of a porter that this process started."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):  # it may be another process's now
                self.process.wait(seconds)
        collect_ended()
        if self.words is not None:
            self.words.close()
        self.process = self.words = None


def _leave(
    owner: int, state: _Connections, address: str | None, folder: Path | None = None
) -> None:
    """Leave the porter. The one at an address ends at once, if nobody else is connected.

    A folder that nobody shares is removed, after the end of the porter: it would make a new one.
    """
    if os.getpid() != owner:  # a forked copy of the object, whose sockets are closed
        return
    state.disconnect()
    if address is not None:
        with socket.socket(socket.AF_UNIX) as last:
            last.setblocking(False)  # noqa: FBT003  the standard library's signature
            if last.connect_ex(address) == 0:
                _sent_at_once(last, pack(("leave",)), None)
    state.reap(_MOMENT if folder is None else _LONG)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _sent_at_once(connection: socket.socket, message: bytes, order: Order | None) -> bool:
    """Send a message without waiting, with an order in a file; False if it did not go whole."""
    connection.setblocking(False)  # noqa: FBT003  the standard library's signature
    try:
        if order is None:
            return connection.send(message) == len(message)
        with attached(order) as file:
            return socket.send_fds(connection, [message], [file.fileno()]) == len(message)
    except OSError:
        return False
    finally:
        connection.setblocking(True)  # noqa: FBT003  likewise


# Addresses


def _new_address() -> str:
    token = secrets.token_hex(16)
    if sys.platform == "linux":
        return f"\0dataporter-{token}"
    return str(Path(tempfile.mkdtemp(prefix="dataporter-")) / "porter")


@contextmanager
def _start_lock(address: str) -> Iterator[bool]:
    """Let one process start a porter at a path; an abstract name needs no lock."""
    if address.startswith("\0"):
        yield True
        return
    folder = os.open(Path(address).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with socket.socket(socket.AF_UNIX) as probe:
            is_free = probe.connect_ex(address) != 0
        if is_free:
            Path(address).unlink(missing_ok=True)
        yield is_free
    finally:
        os.close(folder)


def _bound(listener: socket.socket, address: str) -> bool:
    """Bind and listen; False if another process is faster."""
    try:
        listener.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    listener.listen(_BACKLOG)
    return True
