"""Windows of equal length over the tokens of an epoch's documents, laid end to end.

An epoch has a tape of blocks, and a block one of documents. A window is a stretch of that tape. Its
index says all that is needed to cut it: the number of the window, and a key that chooses the orders
of blocks and documents, another one in each epoch of a seed::

    index = key * windows + window         key 0: blocks and documents as they are stored

So any process cuts any window from its index and the lengths of the documents.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Permutation
from dataporter.law.keys import key_as_int
from dataporter.views.tape import AS_STORED, Pieces, Tape
from dataporter.views.tape_pool import TapePool

# Orders of an epoch to choose from. All epochs of a run have different ones, up to so many.
KEYS = (1 << 20) - 1


def key_of(seed: int, epoch: int) -> int:
    """Return the key of the orders in an epoch, from 1 to KEYS.

    >>> len({key_of(7, epoch) for epoch in range(1000)})
    1000
    """
    number = np.array([epoch % KEYS], dtype=np.int64)
    return int(Permutation(KEYS, key_as_int("packed", seed), 0)(number)[0]) + 1


def tape_of_blocks(tokens: NDArray[np.integer], key: int) -> Tape:
    """Lay blocks of so many tokens end to end."""
    return Tape(tokens, key if key == AS_STORED else key_as_int("blocks of tokens", key))


class Windows:
    """The windows of documents with these lengths.

    `bounds` are the first documents of the blocks, and the number of all; None if each document is
    a block. With `pads`, the rest at the end of an epoch is a window too.

    >>> windows = Windows(np.array([3, 0, 4], np.int32), None, length=5, pads=True)
    >>> windows.pieces(np.array([0, 1])).each()
    [[(0, 0, 3), (2, 0, 2)], [(2, 2, 4)]]
    """

    def __init__(
        self,
        lengths: NDArray[np.int32],
        bounds: NDArray[np.int64] | None,
        *,
        length: int,
        pads: bool,
    ) -> None:
        self._lengths, self.bounds = lengths, bounds
        self.length = length
        self._pads = pads
        self.tokens = lengths if bounds is None else sums(lengths, bounds)  # of each block
        self._begins = np.cumsum(self.tokens, dtype=np.int64) - self.tokens
        self.total = int(self.tokens.sum(dtype=np.int64))
        self.count = -(-self.total // length) if pads else self.total // length
        self._prepare()

    def _prepare(self) -> None:
        self._tape = functools.lru_cache(maxsize=2)(self._make_tape)
        self._documents = TapePool(self._make_documents)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tape": None, "_documents": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    @property
    def space(self) -> int:
        """The number that all indices are below."""
        return self.count * (KEYS + 1)

    def pieces(self, indices: NDArray[np.int64]) -> Pieces:
        """Return the documents of which windows consist, and which of their tokens."""
        key = int(indices[0]) // self.count
        numbers = indices - key * self.count
        if numbers.min() >= 0 and numbers.max() < self.count:
            return self._pieces(key, numbers)
        # The end of one epoch and the start of the next, in a mixture.
        keys, numbers = np.divmod(indices, self.count)
        each = [self._pieces(int(key), numbers[[at]]) for at, key in enumerate(keys)]
        return Pieces(*(np.concatenate(columns) for columns in zip(*each, strict=True)))

    def _pieces(self, key: int, numbers: NDArray[np.int64]) -> Pieces:
        starts = numbers * self.length
        blocks = self._tape(key).cut(starts, np.minimum(starts + self.length, self.total))
        if self.bounds is None:
            return blocks
        found = self._documents.cut(key, blocks.numbers, blocks.starts, blocks.stops)
        if len(blocks.numbers) == len(numbers):  # each window lies in one block
            return found
        first = blocks.counts.cumsum() - blocks.counts
        return found._replace(counts=np.add.reduceat(found.counts, first))

    def _make_tape(self, key: int) -> Tape:
        return tape_of_blocks(self.tokens, key)

    def _make_documents(self, key: int, block: int) -> tuple[Tape, int, int]:
        """Lay the documents of a block end to end; return its first document and token too."""
        bounds: Any = self.bounds
        lengths = self._lengths[bounds[block] : bounds[block + 1]]
        own = key if key == AS_STORED else key_as_int("documents", key, block)
        return Tape(lengths, own), int(bounds[block]), int(self._begins[block])


def sums(lengths: NDArray[np.int32], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up the lengths between bounds; shape (bounds - 1,)."""
    found = np.zeros(len(bounds) - 1, dtype=np.int64)
    filled = np.flatnonzero(np.diff(bounds))
    if filled.size:
        found[filled] = np.add.reduceat(lengths, bounds[filled], dtype=np.int64)
    return found
