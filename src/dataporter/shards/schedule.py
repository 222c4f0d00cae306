"""The schedule: the blocks that a run needs next, from its order alone.

The law says which index every position has, so blocks can be decoded before they are asked for,
in the order of their first use, and the block to evict is the one whose next use is farthest away.
Distances are counted in positions from where the run stands, over the ends of epochs. Nothing here
knows files or processes.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order, Plan
from dataporter.shards.cache import NEVER

_AHEAD = 4 << 30  # bytes that are brought ahead at most
_SHARE_AHEAD = 8  # they are at most this part of the cache
_STEPS = 16  # assumed to be on their way, until more were seen


def bytes_ahead(cache_bytes: int) -> int:
    """Return the bytes that a porter brings ahead of its rank, into a cache of so many bytes.

    >>> bytes_ahead(16 << 30) >> 30, bytes_ahead(200 << 30) >> 30
    (2, 4)
    """
    return min(_AHEAD, cache_bytes // _SHARE_AHEAD)


class Standing(NamedTuple):
    """The place of one rank: all before `start` is delivered, all before `stop` is being read.

    `leaf` is the data that the blocks are of, as the order names it.
    """

    order: Order
    plan: Plan
    epoch: int
    start: int
    stop: int
    leaf: str = ""


NO_BLOCK = -1


class Need(NamedTuple):
    """A block, and where it is first used, in positions since the start of the walk's epoch.

    An epoch of which nothing is left to read ends with `NO_BLOCK`, at its end.
    """

    block: int
    at: int


def needs(blocks: int, standing: Standing) -> Iterator[Need]:
    """Yield the blocks of one rank by first use in each epoch, epoch after epoch, without end.

    `blocks` is the number of all blocks.
    """
    order, plan, epoch, start, _, leaf = standing
    offset = 0
    while plan.num_samples():  # `tail="drop"` may leave nothing of an epoch
        uses = order.uses(leaf, epoch)
        coming = uses.first[uses.last >= start]
        if len(coming):  # nothing is read before the first of them
            start += max(int(coming.min()) - start, 0) // plan.step_size * plan.step_size
            yield from _needs_of_epoch(blocks, standing, epoch, start, offset)
        else:
            yield Need(NO_BLOCK, offset + order.length)
        epoch, start, offset = epoch + 1, 0, offset + order.length


def _needs_of_epoch(
    blocks: int, standing: Standing, epoch: int, start: int, offset: int
) -> Iterator[Need]:
    order, plan = standing.order, standing.plan
    seen = np.zeros(blocks, dtype=bool)
    for dealt in plan.blocks(start, functools.partial(order.deal, epoch)):
        places, read = order.reads(standing.leaf, epoch, dealt)
        different, first = np.unique(read, return_index=True)
        new = ~seen[different]
        seen[different] = True
        for number in np.sort(first[new]).tolist():
            yield Need(int(read[number]), offset + int(dealt[places[number]]))


def distances(standing: Standing, blocks: int) -> NDArray[np.int64]:
    """Count the positions to the next use of each block, 0 for those in use; shape (blocks,).

    All that is read before `stop` is in use: the batches on their way are made in any order.
    """
    order, _, epoch, start, stop, leaf = standing
    now, later = order.uses(leaf, epoch), order.uses(leaf, epoch + 1)
    distance = np.full(blocks, NEVER)
    ahead = np.where(now.first < stop, 0, now.first - start)
    np.minimum.at(distance, now.blocks, np.where(now.last >= start, ahead, NEVER))
    np.minimum.at(distance, later.blocks, later.first + (order.length - start))
    return distance


def most_in_use(standing: Standing, sizes: NDArray[np.int64]) -> int:
    """Return the most bytes of blocks that are in use at a time, and those of one that comes.

    In this epoch and the next one, by all ranks, over as many positions as from `start` to `stop`;
    `sizes` has shape (blocks,).
    """
    order, _, epoch, start, stop, leaf = standing
    before = max(stop - start - 1, 0)  # positions from which a block is in use before it is read
    most = 0
    for uses in (order.uses(leaf, epoch), order.uses(leaf, epoch + 1)):
        begun = np.maximum(uses.first - before, 0)
        blocks, first, last = uses._replace(first=begun).joined()
        positions = np.concatenate([first, last + 1])
        changes = np.concatenate([sizes[blocks], -sizes[blocks]])
        # Where one block ends and another begins, the end comes first.
        in_use = np.cumsum(changes[np.lexsort([changes, positions])])
        most = max(most, int(in_use.max(initial=0)))
    return min(most + int(sizes.max(initial=0)), int(sizes.sum()))


class Lookahead:
    """The blocks to have ready for one rank, at most `bound` bytes beyond its position."""

    def __init__(self, decoded: NDArray[np.int64], bound: int) -> None:
        self._decoded, self._bound = decoded, bound
        self._standing: Standing | None = None
        self._widest = 0  # of the standings, in positions
        self._origin = 0  # the epoch that the walk began in
        self._walk: Iterator[Need] = iter(())
        self._found: deque[Need] = deque()  # by the walk, and not yet returned by `next`
        self._refused: list[Need] = []  # there was no room for them
        self._beyond: deque[Need] = deque()  # returned by `next`, and not yet reached by the run
        self._bytes = 0  # of the blocks in `_beyond`

    def announce(self, standing: Standing) -> None:
        """Take note of where the rank stands now."""
        previous, self._standing = self._standing, standing
        self._widest = max(self._widest, standing.stop - standing.start)
        if previous is not None and _continues(previous, standing):
            self._found.extendleft(reversed(self._refused))
        else:
            self._origin = standing.epoch
            self._walk = needs(len(self._decoded), standing)
            self._found.clear()
            self._beyond.clear()
            self._bytes = 0
        self._refused.clear()
        reached = self._since_origin(standing.epoch, standing.stop)
        while self._beyond and self._beyond[0].at < reached:
            self._bytes -= int(self._decoded[self._beyond.popleft().block])

    def _since_origin(self, epoch: int, position: int) -> int:
        length = self._standing.order.length if self._standing else 0
        return (epoch - self._origin) * length + position

    def next(self) -> Need | None:
        """Return the next block to have ready; None if enough are, until the next announcement."""
        if self._standing is None or self._refused:
            return None
        while True:
            if not self._found:
                self._found.extend(itertools.islice(self._walk, 1))
            if not self._found:
                return None
            need = self._found[0]
            beyond = need.at - self._since_origin(self._standing.epoch, self._standing.stop)
            if beyond >= self._standing.order.length:
                return None
            if need.block != NO_BLOCK:
                break
            self._found.popleft()  # nothing is read up to here
        if beyond >= 0:
            size = int(self._decoded[need.block])
            if self._beyond and self._bytes + size > self._bound:
                return None
            self._beyond.append(need)
            self._bytes += size
        return self._found.popleft()

    def refuse(self, need: Need) -> None:
        """Say that there was no room for a block: it is returned again after an announcement."""
        if need in self._beyond:
            self._beyond.remove(need)
            self._bytes -= int(self._decoded[need.block])
        self._refused.append(need)

    def distance(self, need: Need) -> int:
        """Count the positions from where the rank stands to a need, at least 0."""
        if self._standing is None:
            return 0
        return max(need.at - self._since_origin(self._standing.epoch, self._standing.start), 0)

    def reach(self) -> int:
        """Count the positions from where the rank stands to the last block that was brought."""
        return self.distance(self._beyond[-1]) if self._beyond else 0

    def most_in_use(self, sizes: NDArray[np.int64]) -> int:
        """Return the most bytes that are in use at a time; 0 if nothing was announced.

        A run that has just begun will have more batches on their way, as many as its workers make.
        """
        if self._standing is None:
            return 0
        wide = max(2 * self._widest, _STEPS * self._standing.plan.step_size)
        stop = self._standing.start + wide
        return most_in_use(self._standing._replace(stop=stop), sizes)

    def distances(self, reading: int | None = None) -> NDArray[np.int64] | None:
        """Count the positions to the next use of each block; None if nothing was announced.

        If a block is given that somebody waits for, the run is taken to stand where it is first
        read: what is only used before that is not in use.
        """
        standing = self._standing
        if standing is None:
            return None
        count = len(self._decoded)
        if reading is None:
            return distances(standing, count)
        at = standing.start
        ahead = int(distances(standing._replace(stop=at), count)[reading])
        at += ahead if at + ahead < standing.stop else 0
        return distances(standing._replace(start=at, stop=at), count)


def _continues(previous: Standing, now: Standing) -> bool:
    """Return True if a run has gone on from one standing to the other."""
    same = (previous.order.id, previous.order.seed, previous.plan) == (
        now.order.id,
        now.order.seed,
        now.plan,
    )
    forward = (previous.epoch, previous.start) <= (now.epoch, now.start)
    return same and forward and now.epoch <= previous.epoch + 1
