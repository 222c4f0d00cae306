"""The shuffle: a keyed bijection on [0, n) that is evaluated, never stored.

A position is laid on a grid of `rows` x `columns` cells, the smallest near-square one
with at least n cells. A round rotates each column by an amount hashed from that column's
number, the next round each row by an amount hashed from the row's number. A rotation can
be undone, so every round is a bijection of the grid (this is a Feistel network with
addition modulo the grid's sides in place of XOR). The few cells past the end, fewer than
one row, are walked: the rounds are applied again until the cell is a valid index.

Why not the textbook network over a power of two: up to three quarters of its domain lie
past the end, so its cost jumps fivefold at n = 2**k + 1. Here it is flat in n.

Rotations of a tiny grid reach only some of its permutations, and mix slowly. So below
`SORTED_UP_TO` the order is that of the hashes of 0 … n-1, which makes every permutation
equally likely and costs at most 32 kB.

Evaluation is vectorised; its memory is a few arrays of the size asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import OptionError
from dataporter.law.keys import derive_key, key_as_int, mix

# Each side of the grid must fit in 32 bits, since amounts are scaled from 32-bit hashes.
MAX_LENGTH = 2**62
ROUNDS = 8
SORTED_UP_TO = 4096
# Positions evaluated at a time: the working arrays (64 kB each) stay in a core's cache.
_CHUNK = 8192


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection on [0, length) chosen by (seed, epoch).

    >>> shuffle = Permutation(10, seed=7, epoch=0)
    >>> sorted(shuffle(np.arange(10)).tolist()) == list(range(10))
    True
    >>> int(Permutation(10**12, seed=7, epoch=0)(np.array([10**11]))[0]) < 10**12
    True
    """

    length: int
    seed: int
    epoch: int
    _round_keys: tuple[np.uint32, ...] = field(init=False, repr=False, compare=False)
    _sorted: NDArray[np.int64] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.length <= MAX_LENGTH:
            msg = (
                f"length must be between 0 and 2**62, found {self.length}. "
                "A shuffled order cannot be longer than that."
            )
            raise OptionError(msg)
        material = derive_key("permutation", self.seed, self.epoch, num_bytes=4 * ROUNDS)
        keys = tuple(np.frombuffer(material, dtype="<u4").astype(np.uint32))
        object.__setattr__(self, "_round_keys", keys)
        table = None
        if self.length <= SORTED_UP_TO:
            hashes = mix(key_as_int("permutation", self.seed, self.epoch), np.arange(self.length))
            table = np.argsort(hashes)
        object.__setattr__(self, "_sorted", table)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions in [0, length) to indices in [0, length); shape (k,) to (k,)."""
        if self._sorted is not None:
            return self._sorted[positions]
        return self.walk(positions)

    def walk(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions through the grid, whatever the length."""
        indices = np.empty(positions.shape, dtype=np.int64)
        for start in range(0, len(positions), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            cells = self._rounds(positions[chunk].astype(np.uint64))
            outside = np.flatnonzero(cells >= self.length)
            while outside.size:
                cells[outside] = self._rounds(cells[outside])
                outside = outside[cells[outside] >= self.length]
            indices[chunk] = cells
        return indices

    def _rounds(self, cells: NDArray[np.uint64]) -> NDArray[np.uint64]:
        rows = math.isqrt(max(self.length - 1, 0)) + 1
        columns = -(-self.length // rows) or 1
        row = cells // np.uint64(columns)
        column = cells - row * np.uint64(columns)
        for number, key in enumerate(self._round_keys):
            if number % 2 == 0:
                row = _rotate(row, np.uint64(rows), by=column, key=key)
            else:
                column = _rotate(column, np.uint64(columns), by=row, key=key)
        return row * np.uint64(columns) + column


def _rotate(
    line: NDArray[np.uint64], size: np.uint64, *, by: NDArray[np.uint64], key: np.uint32
) -> NDArray[np.uint64]:
    """Add to each element of `line` an amount hashed from `by`, modulo `size`."""
    hashed = by.astype(np.uint32)
    hashed ^= key
    hashed *= np.uint32(0x9E3779B1)
    hashed ^= hashed >> np.uint32(15)
    hashed *= np.uint32(0x85EBCA77)
    hashed ^= hashed >> np.uint32(13)
    # A 32-bit hash scaled to [0, size) by multiplication: far cheaper than a remainder.
    moved = hashed.astype(np.uint64)
    moved *= size
    moved >>= np.uint64(32)
    moved += line
    # moved < 2 * size: where moved < size the subtraction wraps to a huge number.
    np.minimum(moved, moved - size, out=moved)
    return moved
