"""An order like tracks, for tests: blocks in a new order each epoch, K of them side by side."""

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order, Uses


@dataclass(frozen=True)
class SideBySide(Order):
    """`blocks` blocks of `rows` rows, laid end to end, cut into `tracks`, read in turns."""

    blocks: int
    rows: int
    tracks: int
    seed: int = 0
    leaf: str = ""

    id = "side by side"

    @property
    def length(self) -> int:
        return self.blocks * self.rows

    def with_seed(self, seed: int) -> "SideBySide":
        return replace(self, seed=seed)

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return _epoch(self, epoch)[positions]

    @property
    def leaves(self) -> frozenset[str]:
        return frozenset({self.leaf})

    def reads(
        self, leaf: str, epoch: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        assert leaf == self.leaf
        return np.arange(len(positions)), self.indices(epoch, positions) // self.rows

    def uses(self, leaf: str, epoch: int) -> Uses:
        assert leaf == self.leaf
        return _uses(self, epoch)


@functools.lru_cache(maxsize=64)
def _epoch(order: SideBySide, epoch: int) -> NDArray[np.int64]:
    random = np.random.default_rng([order.seed, epoch])
    tape = random.permutation(order.blocks).repeat(order.rows) * order.rows
    tape += np.tile(np.arange(order.rows), order.blocks)
    tracks = np.array_split(tape, order.tracks)
    longest = max(map(len, tracks))
    turns = [track[turn] for turn in range(longest) for track in tracks if turn < len(track)]
    return np.array(turns, dtype=np.int64)


@functools.lru_cache(maxsize=64)
def _uses(order: SideBySide, epoch: int) -> Uses:
    blocks = _epoch(order, epoch) // order.rows
    first = np.unique(blocks, return_index=True)[1]
    last = len(blocks) - 1 - np.unique(blocks[::-1], return_index=True)[1]
    return Uses(np.arange(order.blocks), first, last)
