"""The plan: how the ranks of a run share the positions of an epoch.

A step of the whole run takes the next `world_size * batch_size` positions, and rank r
takes every world_size-th of them, starting at r::

    position   0  1  2  3  4  5 | 6  7  8  9 10 11 | 12 13     2 ranks, batches of 3
    rank       0  1  0  1  0  1 | 0  1  0  1  0  1 |  0  1
               ---- step 0 ----   ---- step 1 ----   step 2

So what all ranks have consumed after any step is a prefix of the order, and a run may
continue from there with other ranks and other batch sizes. For a fresh epoch in sequence
this is, batch by batch, what torch's DistributedSampler gives.

An order may have a step dealt otherwise (`Order.deal`): its positions are sorted by the order's
numbers, and each rank takes the next `batch_size` of them. It is a prefix all the same.

The tail is what does not fill a step on every rank:

- `pad`: it is shared out, and the epoch's first positions fill up the ranks that would
  get one sample fewer. Every rank makes the same steps with the same batch sizes.
- `drop`: it is left out.
- `uneven`: it is shared out as it is. Some ranks may end one sample or one step earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import OptionError
from dataporter.law.ranks import Topology

Tail = Literal["pad", "drop", "uneven"]
# Numbers in [0, 1) by which ranks share positions; None if they share them by stride.
Deal: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.float64] | None]
# Counts the positions in [start, stop) with numbers below `low`, and finds those up to `high`.
Find: TypeAlias = Callable[[int, int, float, float], tuple[int, NDArray[np.int64]] | None]

# Positions that are worked out at a time: enough to make NumPy's cost per call vanish,
# few enough that the first batch after a resume waits less than a millisecond for them.
_BLOCK = 8192
# Positions by which a share may lie elsewhere than in an even spread, as a first guess.
_SLACK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One rank's batches of an epoch of `length` positions, from any start.

    >>> plan = Plan(length=14, batch_size=3, topology=Topology(rank=1, world_size=2))
    >>> [batch.tolist() for batch in plan.batches()]
    [[1, 3, 5], [7, 9, 11], [13]]
    """

    length: int
    batch_size: int
    topology: Topology = Topology()  # noqa: RUF009  it is frozen
    tail: Tail = "pad"
    step_size: int = field(init=False)  # positions that one step of all ranks consumes

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", self.topology.world_size * self.batch_size)
        if self.tail not in get_args(Tail):
            msg = f"tail must be 'pad', 'drop' or 'uneven', found {self.tail!r}."
            raise OptionError(msg)

    def num_samples(self, start: int = 0) -> int:
        """Samples this rank delivers from `start` to the end of the epoch."""
        rank, world_size = self.topology.rank, self.topology.world_size
        remaining = max(self.length - start, 0)
        if self.tail == "drop":
            return self.num_steps(start) * self.batch_size
        if self.tail == "uneven":
            return max(-(-(remaining - rank) // world_size), 0)
        return -(-remaining // world_size)

    def num_batches(self, start: int = 0) -> int:
        """Batches this rank delivers from `start` to the end of the epoch."""
        return -(-self.num_samples(start) // self.batch_size)

    def remaining(self, start: int = 0) -> int:
        """Count the positions that all ranks together deliver from `start`, each once."""
        remaining = max(self.length - start, 0)
        return remaining - (remaining % self.step_size if self.tail == "drop" else 0)

    def num_steps(self, start: int = 0) -> int:
        """Steps that the ranks make from `start` to the end of the epoch, all or some of them."""
        return -(-self.remaining(start) // self.step_size)

    def position_after(self, start: int, batches: int) -> int:
        """Position that all ranks have reached after so many batches from `start`."""
        return min(start + batches * self.step_size, max(self.length, start))

    def batches(
        self, start: int = 0, deal: Deal | None = None, find: Find | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the positions of each of this rank's batches; shapes (batch_size,)."""
        for block in self.blocks(start, deal, find):
            for first in range(0, len(block), self.batch_size):
                yield block[first : first + self.batch_size]

    def padding(self, start: int = 0, deal: Deal | None = None) -> NDArray[np.bool_]:
        """Say which samples of this rank's first batch from `start` are repeated to fill it.

        >>> Plan(length=4, batch_size=3, topology=Topology(rank=1, world_size=3)).padding().tolist()
        [False, True]
        """
        if start + self.step_size <= self.length:
            return np.zeros(self.batch_size, dtype=np.bool_)
        first: NDArray[np.int64] = next(self._shares(start, deal), np.zeros(0, dtype=np.int64))
        return first[: self.batch_size] >= self.length

    def blocks(
        self, start: int = 0, deal: Deal | None = None, find: Find | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the same positions in blocks of many whole batches.

        With `find`, the work for a large step does not grow with the number of ranks.
        """
        for block in self._shares(start, deal, find):
            repeats = self.tail == "pad" and (block >= self.length).any()
            yield block % self.length if repeats else block

    def _shares(
        self, start: int, deal: Deal | None, find: Find | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield this rank's blocks; a position past the end is one of the first once more."""
        if deal is not None and self.topology.world_size > 1 and start < self.length:
            first = deal(np.array([start], dtype=np.int64))
            if first is not None:
                return self._dealt(start, deal, find)
        return self._by_stride(start)

    def _by_stride(self, start: int) -> Iterator[NDArray[np.int64]]:
        rank, world_size = self.topology.rank, self.topology.world_size
        count = self.num_samples(start)
        block = -(-_BLOCK // self.batch_size) * self.batch_size
        for first in range(0, count, block):
            steps = np.arange(first, min(first + block, count), dtype=np.int64)
            yield steps * world_size + (start + rank)

    def _dealt(self, start: int, deal: Deal, find: Find | None) -> Iterator[NDArray[np.int64]]:
        rank, step, size = self.topology.rank, self.step_size, self.batch_size
        end = start + self.remaining(start)
        whole = end - (end - start) % step
        block = max(_BLOCK // step, 1) * step
        for first in range(start, whole, block):
            found = None if find is None or step < _BLOCK else self._found(first, deal, find)
            if found is None:
                positions = np.arange(first, min(first + block, whole), dtype=np.int64)
                steps = _sorted_by(deal, positions, step)
                found = steps[:, rank * size : (rank + 1) * size].ravel()
            yield found
        if whole < end:  # the last step is short
            yield self._last_share(np.arange(whole, end, dtype=np.int64), deal)

    def _found(self, start: int, deal: Deal, find: Find) -> NDArray[np.int64] | None:
        """Return this rank's share of a whole step, found without sorting all of the step."""
        step, size, slack = self.step_size, self.batch_size, _SLACK
        before = self.topology.rank * size
        while True:
            low, high = (before - slack) / step, (before + size + slack) / step
            found = find(start, start + step, low, high)
            if found is None:
                return None
            below, positions = found
            if below <= before and before + size <= below + len(positions):
                share: NDArray[np.int64] = _sorted_by(deal, positions, len(positions))[0]
                return share[before - below : before - below + size]
            slack *= 4  # numbers that are spread unevenly

    def _last_share(self, positions: NDArray[np.int64], deal: Deal) -> NDArray[np.int64]:
        """Return this rank's share of fewer positions than fill a step; the first have one more."""
        ranks = self.topology.world_size
        if self.tail == "pad":
            missing = -len(positions) % ranks
            positions = np.append(positions, self.length + np.arange(missing))
        of_samples = lambda positions: deal(positions % self.length)  # noqa: E731
        shares = np.array_split(_sorted_by(of_samples, positions, len(positions))[0], ranks)
        return shares[self.topology.rank]


def _sorted_by(deal: Deal, positions: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """Sort the positions of each step by their numbers; shape (steps, step)."""
    numbers: NDArray[np.float64] = deal(positions)  # type: ignore[assignment]  # it deals by numbers
    by_number = np.argsort(numbers.reshape(-1, step), axis=1, kind="stable")
    return np.take_along_axis(positions.reshape(-1, step), by_number, axis=1)


def located(epoch: int, samples: int, length: int) -> tuple[int, int]:
    """Turn a count of samples since the start of `epoch` into an epoch and a position.

    >>> located(2, 250, length=100)
    (4, 50)
    """
    return epoch + samples // length, samples % length
