"""Processes of our own, started by exec: the porter, and the one that indexes files elsewhere.

A porter serves whoever is connected to it, so it may end long after, or before, the object that
started it is gone. None stays as a zombie: starts, ends of datasets and Python's garbage collector
look for those that have ended.

Messages are pickles with their length in front, on a socket. An answer is a pair: None and the
answer, or a pickled error and None. Between answers, a note is a pair of NOTE and the logger's
name, level and text of what a process logs: it is logged where it is read. A porter logs a summary
of its counters now and then.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from dataporter.errors import ShardError
from dataporter.layout import counted
from dataporter.system.memory import unnamed_file
from dataporter.system.processes import pickled_error

_LENGTH = struct.Struct("<I")


def pack(message: Any) -> bytes:
    """Pack a message for `socket.sendall`."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def answer(connection: socket.socket, message: Any) -> None:
    """Answer a client. If it has gone, it will ask again if it still needs the answer."""
    with suppress(OSError):
        connection.sendall(pack(message))


def receive(connection: socket.socket) -> Any:
    """Wait for one message. The end of the connection is a `ConnectionError`."""
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    return pickle.loads(_receive_bytes(connection, length))  # noqa: S301  from our own user


def has_arrived(connection: socket.socket, seconds: float = 0) -> bool:
    """Wait so long for a message, or the end of the connection; False if none has come."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = connection.recv(count)
        if not part:
            msg = "the other side has gone"
            raise ConnectionResetError(msg)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Incoming:
    """Messages of one connection, from bytes and descriptors as they arrive."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._bytes = bytearray()
        self._descriptors: list[int] = []

    def receive(self) -> list[Any] | None:
        """Return the messages that are complete now; None at the end of the connection."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, 1 << 16, 4)
        except ConnectionError:
            return None
        self._descriptors += descriptors
        if not data:
            return None
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                break
            messages.append(pickle.loads(self._bytes[_LENGTH.size : end]))  # noqa: S301  likewise
            del self._bytes[:end]
        return messages

    def attachment(self) -> Any:
        """Unpickle the file that came with a message."""
        with os.fdopen(self._descriptors.pop(0), "rb") as file:
            file.seek(0)
            return pickle.load(file)  # noqa: S301  likewise

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self.connection.close()


def attached(value: Any) -> IO[bytes]:
    """Pickle a value into a file without a name, to be sent or to be a process's input."""
    pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    file = os.fdopen(unnamed_file(), "w+b")
    file.write(pickled)
    file.flush()
    file.seek(0)
    return file


def is_ours(connection: socket.socket) -> bool:
    """Return True if the process at the other side belongs to the same user."""
    if sys.platform != "linux":
        return True  # the folder of the socket is closed to other users
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


def packed_error(error: BaseException) -> bytes:
    """Pickle an error so that it comes back with its type and message, or as a `ShardError`."""
    other = ShardError(f"{type(error).__name__}: {error}")
    return pickled_error(error) or pickle.dumps(other)


NOTE = "note"
_NOW_AND_THEN = 0.01  # seconds


def is_note(kind: object, value: Any) -> bool:
    """Log a note, and return True if a pair is one."""
    if kind != NOTE:
        return False
    name, level, text = value
    logging.getLogger(name).log(level, "%s", text)
    return True


def note_of(record: logging.LogRecord) -> tuple[str, tuple[str, int, str]]:
    """Return a line of the log as a note."""
    return NOTE, (record.name, record.levelno, record.getMessage())


def received(
    connection: socket.socket, meanwhile: Callable[[], None] | None = None
) -> tuple[bytes | None, Any]:
    """Wait for an answer, log the notes that come before it, and call `meanwhile` now and then."""
    while True:
        while meanwhile is not None and not has_arrived(connection, _NOW_AND_THEN):
            meanwhile()
        error, answer = receive(connection)
        if not is_note(error, answer):
            return error, answer


class Notes(logging.Handler):
    """Log records of this process, as notes that wait to be sent. The oldest are dropped."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.waiting: deque[tuple[str, tuple[str, int, str]]] = deque(maxlen=1000)
        logger = logging.getLogger("dataporter")
        logger.addHandler(self)
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self.waiting.append(note_of(record))

    def end(self) -> None:
        """Take no more notes."""
        logging.getLogger("dataporter").removeHandler(self)


_EVERY = 10.0  # seconds between two summaries
_SOON = 1.0  # seconds that somebody waits before the log says so

_log = logging.getLogger(__name__)


class Reporter(threading.Thread):
    """Logs what was done since the last time, and what others wait for.

    `statistics` are the counters. `waiting` says for how many blocks others wait and for how long,
    and `tell` sends a line to one of those who wait.
    """

    def __init__(
        self,
        place: str,
        statistics: Callable[[], Mapping[str, int]],
        waiting: Callable[[], tuple[int, float]],
        tell: Callable[[int, str], None],
    ) -> None:
        super().__init__(name="dataporter report", daemon=True)
        self._place = place
        self._statistics, self._waiting, self._tell = statistics, waiting, tell

    def run(self) -> None:
        before: Mapping[str, int] = {}
        last = time.monotonic() - _EVERY  # the first summary comes soon
        while True:
            time.sleep(_SOON)
            now = self._statistics()
            blocks, seconds = self._waiting()
            if seconds >= _SOON:
                so_far = f"{counted(now['decoded'], 'block')} so far, {_megabytes(now['bytes'])}"
                text = f"waiting for {counted(blocks, 'block')} from {self._place}: {so_far}"
                self._tell(logging.INFO, text)
            if time.monotonic() - last >= _EVERY:
                if text := summary(self._place, before, now):
                    _log.info("%s", text)
                before, last = now, time.monotonic()


def summary(place: str, before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Say in a line what was done between two counts; nothing if that is nothing.

    >>> before = {"decoded": 2, "bytes": 10_000_000}
    >>> now = {"decoded": 5, "bytes": 34_000_000, "waits": 1, "waited_ms": 1200, "evicted": 2}
    >>> summary("s3://bucket/corpus", before, now)
    's3://bucket/corpus: brought 3 blocks (24.0 MB), waited for 1 block (1.2 s), evicted 2 blocks'
    """
    done = {name: now[name] - before.get(name, 0) for name in now}
    parts = []
    if done.get("decoded"):
        parts.append(f"brought {counted(done['decoded'], 'block')} ({_megabytes(done['bytes'])})")
    if done.get("requests"):
        fetched = f"{counted(done['requests'], 'request')}, {_megabytes(done['fetched'])}"
        parts.append(f"fetched by {fetched}")
    if done.get("retries"):
        parts.append(f"tried {counted(done['retries'], 'request')} again")
    if done.get("waits"):
        waited = f"{done['waited_ms'] / 1000:.1f} s"
        parts.append(f"waited for {counted(done['waits'], 'block')} ({waited})")
    if done.get("evicted"):
        parts.append(f"evicted {counted(done['evicted'], 'block')}")
    return f"{place}: {', '.join(parts)}" if parts else ""


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


_started: set[Process] = set()  # by this process, and not known to have ended


class Process(subprocess.Popen[bytes]):
    """A process that may outlive its object, and this process."""

    def __del__(self) -> None:
        """Do nothing, where `Popen` warns of a process that still runs."""


def collect_ended() -> None:
    """Take note of processes that have ended, so that the system forgets them."""
    for process in list(_started):
        if process.poll() is not None:
            _started.discard(process)


def _at_collection(phase: str, info: dict[str, Any]) -> None:
    # The youngest objects are collected too often to look each time.
    if _started and phase == "stop" and info["generation"]:
        collect_ended()


gc.callbacks.append(_at_collection)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_started.clear)  # they are no children of a fork


def start_process(
    module: str,
    channel: socket.socket,
    given: IO[bytes],
    words: IO[bytes] | None,
    *,
    is_apart: bool,
) -> Process:
    """Run a module with the descriptor of a socket as its argument.

    `given` is its standard input, and `words` keeps what it prints; None prints it here. A process
    that is apart does not see Ctrl-C.
    """
    collect_ended()
    process = Process(
        [sys.executable, "-m", module, str(channel.fileno())],
        stdin=given,
        stdout=subprocess.DEVNULL,
        stderr=words,
        pass_fds=[channel.fileno()],
        cwd="/",
        env=_environment(),
        start_new_session=is_apart,
    )
    _started.add(process)
    return process


def _environment() -> dict[str, str]:
    """Return an environment in which a process finds the modules that this process finds."""
    path = os.pathsep.join(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))  # noqa: PTH100  '' is the current folder
    # Threads of linear algebra would only cost time to start.
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}


def last_words(words: IO[bytes] | None) -> str:
    """Return the last line that a process printed, as a sentence."""
    if words is None:
        return ""
    words.seek(0)
    lines = words.read().decode(errors="replace").strip().splitlines()
    return f"Its last words: {lines[-1]} " if lines else ""
