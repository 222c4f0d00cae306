"""The times of a loader, noted while it is profiled. Otherwise there is no `Timing`.

Whoever makes a batch notes the end of each stage; a worker process leaves what it noted
behind the batch in its slot. Whoever hands it over notes how long it was waited for. All
stamps are nanoseconds of one clock, that of the system, which its processes share.

Noting takes a few microseconds a batch. Where that would show, since batches are made in little
more, only one of several is noted, and stands for the others.
"""

from __future__ import annotations

import marshal
import operator
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic_ns, thread_time_ns, time_ns
from typing import Any, NamedTuple

STAGES = ("fetch", "collate", "convert", "state", "write", "pin")
FETCH, COLLATE, CONVERT, STATE, WRITE, PIN = range(len(STAGES))

CONSUMER = -1  # in place of a worker's number: made where it was asked for

_WORTH_TIMING = 25_000  # ns that a sample takes; below, looking at the clock would show
_WORTH_NOTING = 500_000  # ns that batches take, of which one is noted
_MOST_UNNOTED = 31  # others beside it
_NAMED = 4  # slowest samples of a batch
_LOOK_EVERY = 4  # batches at what the system says of a thread, which takes 12 µs,
_WORTH_LOOKING = 2_000_000  # and only if they take so many ns
_WHERE = struct.Struct("<QQ")  # offset and size of a batch in its slot


class Clock(NamedTuple):
    """The clock of one system, of which `monotonic_ns` tells the time."""

    system: str  # the start of a system that this is the clock of; empty if unknown
    began: int  # ns; the time of day when it began

    @classmethod
    def here(cls) -> Clock:
        """Return the clock of this system."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
                system = file.read()
        except OSError:  # not on Linux
            system = ""
        return cls(system, time_ns() - monotonic_ns())

    def distance_from(self, other: Clock) -> int:
        """Return the ns to add to a stamp of `other`, for a stamp of this clock.

        As exact as the two systems agree on the time of day; 0 if it is the same clock.
        """
        return 0 if self.system and self.system == other.system else other.began - self.began


class Made(NamedTuple):
    """The making of one batch."""

    number: int  # of the batch in its epoch, from 1
    worker: int
    cpu: int | None  # ns that its maker computed, of some
    queued: int | None  # and that it would have, had a core been free; the rest it waited
    spans: list[tuple[int, int, int]]  # stage, start, end
    samples: int
    usual: int  # ns of its middle sample, 0 where samples were not timed one by one
    most: int  # ns that three of four samples take at most, likewise
    middle: int | str | None  # the index of its middle sample
    slowest: Sequence[tuple[int | str, int]]  # index and ns of a few, never its maker's first
    stands_for: int = 1  # batches: itself, and those before it that were not noted
    draws: bool = False  # whether its samples were fetched one by one since they draw


class Handed(NamedTuple):
    """The handing over of one batch."""

    number: int
    asked: int
    there: int  # when the consumer had not to wait for its maker any more
    handed: int
    ready: int  # batches that were there when it was asked for


class _Batch:
    """The batch that a thread is making."""

    __slots__ = (
        *("before", "count", "draws", "is_noted", "looks", "made", "marks", "pace", "paces"),
        *("samples", "stands_for", "unnoted", "worker"),
    )

    def __init__(self) -> None:
        self.worker = CONSUMER
        self.marks: list[int] = [0]  # a stamp, then stage and stamp by turns
        self.samples: list[tuple[int, Any]] = []
        self.count = 0
        self.draws = False
        self.made = 0  # batches noted before this one
        self.is_noted = True
        self.unnoted = 0  # batches that will not be
        self.stands_for = 1
        self.looks = False  # at what the system says
        self.before = 0, 0  # what it said at the beginning
        # ns for a sample of the last two batches: one may have been held up by another process.
        self.pace = self.paces = _WORTH_TIMING


class _Thread(threading.local):
    def __init__(self) -> None:
        self.batch = _Batch()


class Timing:
    """Notes when batches are made and handed over.

    Noting is done at every batch, so all that can be done later is: `made` and `handed` are
    put together when they are asked for.

    >>> timing = Timing()
    >>> timing.begin()
    >>> timing.end(FETCH, 32)
    >>> timing.note_made(1)
    >>> timing.made[0].samples
    32
    """

    def __init__(self) -> None:
        self._made: list[tuple[int, Any]] = []
        self._handed: list[tuple[int, int, int, int, int]] = []
        self._thread = _Thread()
        self._due = 0  # batches of which both were noted, or are about to be
        self.shift = 0  # ns to add to stamps for the process that asked, on another system

    def __reduce__(self) -> tuple[Any, ...]:
        return Timing, ()  # a worker notes for itself

    @property
    def made(self) -> list[Made]:
        """Every batch whose making was noted."""
        return [_unpacked(number, noted) for number, noted in self._made]

    @property
    def handed(self) -> list[Handed]:
        """Likewise, those that were handed over by others than their makers."""
        return [Handed(*noted) for noted in self._handed]

    def join(self, numbers: Iterator[int]) -> None:
        """Give this thread the next number as that of a worker."""
        self._thread.batch.worker = next(numbers)

    def begin(self) -> None:
        """Note that this thread begins a batch."""
        batch = self._thread.batch
        batch.is_noted = not batch.unnoted
        if batch.unnoted:
            batch.unnoted -= 1
            return
        batch.count = 0
        batch.samples = []
        if batch.looks:
            batch.before = _scheduled()
        batch.marks = [monotonic_ns()]

    def end(self, stage: int, samples: int = 0, *, draws: bool = False) -> None:
        """Note that all since the last end was this stage.

        How many samples it has fetched, and whether one by one since they draw.
        """
        batch = self._thread.batch
        if not batch.is_noted:
            return
        marks = batch.marks
        marks += (stage, monotonic_ns())
        if samples:
            batch.count += samples
            batch.draws = draws
            batch.paces, batch.pace = batch.pace, (marks[-1] - marks[-3]) // samples

    def each(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what fetches a sample, watched by a clock if samples take long enough."""
        batch = self._thread.batch
        if batch.pace < _WORTH_TIMING or batch.paces < _WORTH_TIMING or not batch.is_noted:
            return fetch
        samples = batch.samples

        def fetch_timed(index: Any) -> Any:
            began = monotonic_ns()
            sample = fetch(index)
            samples.append((monotonic_ns() - began, index))
            return sample

        return fetch_timed

    def note_made(self, number: int) -> None:
        """Note the batch that this thread has made, for a consumer in this process."""
        batch = self._thread.batch
        if batch.is_noted:
            self._made.append((number, _taken(batch, batch.worker)))

    def packed(self, worker: int, offset: int, size: int) -> bytes:
        """Pack the making of a batch and its place, for the process that asked.

        Nothing, if this batch is not noted.
        """
        batch = self._thread.batch
        if not batch.is_noted:
            return b""
        noted = _taken(batch, worker)
        if self.shift:
            batch.marks[0::2] = [stamp + self.shift for stamp in batch.marks[0::2]]
        return _WHERE.pack(offset, size) + marshal.dumps(noted)

    def unpack(self, number: int, packed: bytes) -> tuple[int, int]:
        """Note a batch that another process has made; its offset and size."""
        self._made.append((number, packed))
        offset, size = _WHERE.unpack_from(packed)
        return offset, size

    def is_due(self) -> bool:
        """Return True if one more handing over should be noted, since a making was."""
        if len(self._made) <= self._due:
            return False
        self._due += 1
        return True

    def note_handed(self, number: int, asked: int, there: int, ready: int) -> None:
        """Note that a batch is handed over."""
        self._handed.append((number, asked, there, monotonic_ns(), ready))


def _taken(batch: _Batch, worker: int) -> tuple[Any, ...]:
    """Return the notes on a batch that has just been made."""
    marks, samples = batch.marks, batch.samples
    if not batch.made:
        samples = samples[1:]  # in the first, files are opened and modules imported
    batch.made += 1
    cpu = queued = None
    if batch.looks:
        after = _scheduled()
        cpu, queued = after[0] - batch.before[0], after[1] - batch.before[1]
    spent = marks[-1] - marks[0]
    batch.looks = spent > _WORTH_LOOKING and not batch.made % _LOOK_EVERY
    stands_for = batch.stands_for
    batch.unnoted = min(_WORTH_NOTING // max(spent, 1), _MOST_UNNOTED)
    batch.stands_for = batch.unnoted + 1
    if not samples:
        seen: tuple[Any, ...] = 0, 0, None, ()
    else:
        samples = sorted(samples, key=_spent, reverse=True)
        usual, middle = samples[len(samples) // 2]
        named = ((_plain(index), spent) for spent, index in samples[:_NAMED])
        slowest = [(index, spent) for index, spent in named if index is not None]
        seen = usual, samples[len(samples) // 4][0], _plain(middle), slowest
    return worker, cpu, queued, marks, batch.count, *seen, stands_for, batch.draws


def _scheduled() -> tuple[int, int]:
    """Return the ns that this thread has computed, and waited for a core."""
    try:
        status = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:  # not on Linux
        return thread_time_ns(), 0
    try:
        cpu, queued, _ = os.read(status, 64).split()
    finally:
        os.close(status)
    return int(cpu), int(queued)


def _unpacked(number: int, noted: Any) -> Made:
    if isinstance(noted, bytes):
        noted = marshal.loads(noted[_WHERE.size :])  # noqa: S302  from a worker of ours
    worker, cpu, queued, marks, *rest = noted
    spans = list(zip(marks[1::2], marks[0::2], marks[2::2], strict=False))
    return Made(number, worker, cpu, queued, spans, *rest)


def _spent(sample: tuple[int, Any]) -> int:
    return sample[0]


def _plain(index: Any) -> int | str | None:
    """An index of the user's sampler as what can be sent and fetched again, if it can."""
    if isinstance(index, str):
        return str(index)
    try:
        return operator.index(index)
    except TypeError:
        return None
