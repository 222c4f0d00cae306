"""The budget: limits of tasks ahead, of the memory of slots, and the number of workers.

Usually `num_workers * prefetch_factor` batches are fetched ahead. While the consumer waits, more
are: 4 times as many may be unfinished, so that no worker runs out of work, and 16 times as many
may be ahead in all, so that no worker stops behind a slow batch. All of them together take at most
`most_bytes`, unless the usual number takes more.

Tasks are issued several at a time, since every message may have to wake up a worker. So up to 7
more than the usual number may be ahead, if the bytes allow it; fewer never are.

Pure arithmetic: it is redone only when a batch is larger than all before it, or the number of
workers changes.

Where the number of workers adapts, `Pace` finds the one that keeps up with the consumer: one worker
more while the consumer waits, one fewer when it has not waited for a long time. Data does not
depend on that number.
"""

from __future__ import annotations

import time
from typing import NamedTuple

AHEAD_WHILE_WAITING = 16  # times the usual number
UNFINISHED_WHILE_WAITING = 4  # likewise
PREFETCH_BYTES = 2**28  # what batches ahead may take, unless the user says otherwise
MOST_ISSUED = 1024  # messages; far fewer than a pipe holds, so that issuing never blocks
MOST_LENT = 2**13  # slots; each is a mapping, and a process may have 65,530 of them

_MOST_TOGETHER = 8  # tasks in a message; more would hardly save anything
_DELIVERED = 4  # batches that a consumer has at a time, with those on their way to a device
_LEAST_READ = 8  # slots that devices may be reading, however large
_MARKED_BYTES = 2**20  # bytes of slots that share a mark; few, so that they stay in caches
_MOST_MARKED = 16  # slots that share a mark


class Limits(NamedTuple):
    """Limits of the tasks that were issued and not delivered."""

    ahead: int  # in all
    unfinished: int  # without a reply
    together: int  # tasks that are worth a message


class Budget:
    """Limits for one engine. `grows` says whether more is fetched while the consumer waits.

    `most_bytes` limits what is fetched beyond the usual number, and what devices may be reading.
    `most_ahead` limits the usual number.

    >>> budget = Budget(prefetch_factor=2, workers=4)
    >>> budget.usual == budget.waiting == Limits(ahead=8, unfinished=8, together=1)
    True
    >>> budget.note_size(2**20)  # now the size of a batch is known
    >>> budget.usual, budget.waiting
    (Limits(ahead=11, unfinished=11, together=4), Limits(ahead=128, unfinished=32, together=8))
    """

    def __init__(
        self,
        prefetch_factor: int,
        workers: int,
        *,
        most_bytes: int = PREFETCH_BYTES,
        grows: bool = True,
        most_ahead: int = MOST_ISSUED // AHEAD_WHILE_WAITING,
    ) -> None:
        self._most_bytes = most_bytes
        self._most_ahead = most_ahead
        self._prefetch_factor = prefetch_factor
        self._workers = workers
        self._grows = grows
        self._largest = 0  # bytes of the largest batch so far
        self._calculate()

    def note_size(self, size: int) -> None:
        """Note the bytes that a batch takes in its slot."""
        if size > self._largest:
            self._largest = size
            self._calculate()

    def note_workers(self, workers: int) -> None:
        """Note how many workers there should be from now on."""
        if workers != self._workers:
            self._workers = workers
            self._calculate()

    def _calculate(self) -> None:
        depth = min(self._workers * self._prefetch_factor, self._most_ahead)
        self.usual = self.waiting = Limits(depth, depth, together=1)
        # Slots that devices may be reading before the host waits for them.
        self.most_read = depth
        self.marked_together = 1  # slots that share a mark
        if self._largest:
            room = max(self._most_bytes // self._largest, depth)
            self.most_read = max(self._most_bytes // self._largest, _LEAST_READ)
            # Half of them, or the host would wait for a mark that was taken just now.
            most_marked = min(_MOST_MARKED, self.most_read // 2)
            self.marked_together = max(1, min(most_marked, _MARKED_BYTES // self._largest))
            together = max(1, min(depth // 2, room - depth + 1, _MOST_TOGETHER))
            ahead = depth + together - 1
            self.usual = self.waiting = Limits(ahead, ahead, together)
            if self._grows and room > ahead:
                unfinished = min(depth * UNFINISHED_WHILE_WAITING, room)
                self.waiting = Limits(
                    ahead=min(depth * AHEAD_WHILE_WAITING, room),
                    unfinished=unfinished,
                    together=max(1, min(unfinished // 4, _MOST_TOGETHER)),
                )
        # Free slots that keep their memory: as many as are in use at most (fetched ahead, read by
        # devices, delivered). With fewer, the end of a pass would give memory back that the next
        # pass has to ask for again.
        self.most_free = self.usual.ahead + self.most_read + _DELIVERED


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
