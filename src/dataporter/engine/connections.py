"""Connections between an engine and its workers: the arena and the pipes.

    engine ──── issues: one pipe that all workers read, or one for each ────▶ workers
       ▲                                                                         │
       └──────────────── replies: one pipe that all workers write ◀──────────────┘

Messages are small and of fixed size, so every read and write of one is whole: there is no lock
that a killed worker could hold.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
from array import array
from collections.abc import Iterable, Iterator

from dataporter.engine.arena import create_arena
from dataporter.engine.wire import ISSUE, REPLY, STOP
from dataporter.engine.worker import Wiring

try:
    import fcntl
    import termios
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

_REPLIES_AT_ONCE = 256
# Bytes of whole messages that a pipe takes as one, however little room it has. Windows has no
# such limit.
_MOST_WRITTEN = getattr(select, "PIPE_BUF", 512) // ISSUE.size * ISSUE.size

# The descriptors of every engine of this process, by that of its arena.
_open: dict[int, list[int]] = {}


def open_descriptors() -> set[int]:
    """List the descriptors of all engines; a forked worker closes those of other engines."""
    return {descriptor for descriptors in _open.values() for descriptor in descriptors}


class Connections:
    """The descriptors that one engine shares with its workers.

    Worker `w` reads pipe `w % num_pipes`.
    """

    def __init__(self, num_pipes: int) -> None:
        self.arena = create_arena()
        self._issues = [_IssuePipe() for _ in range(num_pipes)]
        self.replies, self._replies_in = os.pipe()
        os.set_blocking(self.replies, False)
        _open[self.arena] = [self.arena, self.replies, self._replies_in]
        for pipe in self._issues:
            _open[self.arena] += pipe.descriptors

    def add_descriptor(self, descriptor: int) -> None:
        """Add a descriptor to those that are closed with the others."""
        _open[self.arena].append(descriptor)

    def of_worker(self, worker: int) -> Wiring:
        """Return the ends that a worker uses."""
        issues = self._issues[worker % len(self._issues)].read
        return Wiring(arena=self.arena, issues=issues, replies=self._replies_in)

    def worker_of(self, place: int) -> int:
        """Return the number of the worker that runs the tasks of a place."""
        return place % len(self._issues)

    def add(self, place: int | None, number: int, slot: int, size: int) -> None:
        """Add an issue to those that `send` sends.

        It is for the worker of a place; without a place, for any worker.
        """
        pipe = self._issues[(place or 0) % len(self._issues)]
        pipe.unsent += ISSUE.pack(number, slot, size)

    def send(self) -> None:
        """Send the issues that were added."""
        for pipe in self._issues:
            if pipe.unsent:
                pipe.send()

    def take_back(self, workers: Iterable[int] | None = None) -> set[int]:
        """Take back issues that no worker has read, sent or not; of all workers or of some.

        Workers that were told to end are told again. Returns the numbers of the issues.
        """
        pipes = self._issues if workers is None else [self._issues[w] for w in workers]
        found: set[int] = set()
        for pipe in pipes:
            numbers = pipe.take_back()
            pipe.stop(numbers.count(STOP))
            found.update(numbers)
        found.discard(STOP)
        return found

    def read_replies(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the replies that are there: number, slot, outcome, offset, size."""
        most = REPLY.size * _REPLIES_AT_ONCE
        with contextlib.suppress(BlockingIOError):
            while True:
                data = os.read(self.replies, most)
                yield from REPLY.iter_unpack(data)
                if len(data) < most:  # there was no more
                    return

    def num_unread(self) -> int:
        """Count the replies that are there, and read none."""
        unread = array("i", [0])
        with contextlib.suppress(OSError):  # closed meanwhile
            if fcntl is not None:
                fcntl.ioctl(self.replies, termios.FIONREAD, unread)
        return unread[0] // REPLY.size

    def stop_one(self) -> None:
        """Tell one worker to end, whoever reads it first."""
        self._issues[0].stop(1)

    def stop_all(self, workers: int) -> None:
        """Tell all workers to end, of which there are so many."""
        for pipe in self._issues:
            pipe.take_back()
            pipe.stop(workers if len(self._issues) == 1 else 1)

    def close(self) -> None:
        """Close everything. A worker that still reads or writes ends then."""
        for descriptor in _open.pop(self.arena):
            os.close(descriptor)


class _IssuePipe:
    """A pipe of issues. The engine can take back what no worker has read."""

    def __init__(self) -> None:
        # A second read end, which never blocks: that is a property of an end, not of a read.
        self.read, self._write, self._read_at_once = _opened()
        self.unsent = b""  # messages

    @property
    def descriptors(self) -> list[int]:
        return [self.read, self._write, self._read_at_once]

    def send(self) -> None:
        """Send what is unsent: at once, since every write may have to wake up a worker."""
        # Unsent no more before it is written: an interrupt in between must not free slots in use.
        messages, self.unsent = self.unsent, b""
        self._put(messages)

    def take_back(self) -> list[int]:
        """Take back all that no worker has read, and return the numbers of the issues."""
        numbers = [number for number, _, _ in ISSUE.iter_unpack(self.unsent)]
        self.unsent = b""
        with contextlib.suppress(BlockingIOError):
            while message := os.read(self._read_at_once, ISSUE.size):
                numbers.append(ISSUE.unpack(message)[0])
        return numbers

    def stop(self, workers: int) -> None:
        """Tell so many workers to end."""
        self._put(ISSUE.pack(STOP, 0, 0) * workers)

    def _put(self, messages: bytes) -> None:
        for start in range(0, len(messages), _MOST_WRITTEN):
            os.write(self._write, messages[start : start + _MOST_WRITTEN])


def _opened() -> tuple[int, int, int]:
    """Open a pipe: its read end, its write end, and a read end that never blocks."""
    read, write = os.pipe()
    with contextlib.suppress(FileNotFoundError):  # no /proc
        return read, write, os.open(f"/proc/self/fd/{read}", os.O_RDONLY | os.O_NONBLOCK)
    os.close(read)
    os.close(write)
    # Only a pipe with a name can be opened twice; so it has one for a moment.
    with tempfile.TemporaryDirectory(prefix="dataporter") as folder:
        name = f"{folder}/issues"
        os.mkfifo(name)
        # In this order: an end that blocks waits for one of the other kind.
        unblocked = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        write = os.open(name, os.O_WRONLY)
        return os.open(name, os.O_RDONLY), write, unblocked
