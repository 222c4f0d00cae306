"""A tape: things of known lengths, laid end to end in an order chosen by a key.

Packed windows are cut from tapes. The tape of an epoch has the blocks of the data, each of which is
a tape of its documents, or the documents themselves if the data has no blocks.

A pool has the tapes of the blocks that were read from lately, as one, so that one search serves a
batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Permutation

AS_STORED = 0  # the key of the order in which things are stored


class Pieces(NamedTuple):
    """Things, or parts of them, of which several stretches consist, one stretch after the other."""

    numbers: NDArray[np.int64]  # of the things; shape (pieces,)
    origins: NDArray[np.int64]  # the tokens that are stored before each thing
    starts: NDArray[np.int64]  # first tokens
    stops: NDArray[np.int64]  # the tokens after the last ones
    counts: NDArray[np.int64]  # pieces of each stretch; shape (stretches,)

    def each(self) -> list[list[tuple[int, int, int]]]:
        """Return the pieces of each stretch: number, first token, the token after the last one."""
        pieces = list(
            zip(self.numbers.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)
        )
        ends = np.cumsum(self.counts)
        bounds = zip((ends - self.counts).tolist(), ends.tolist(), strict=True)
        return [pieces[begin:end] for begin, end in bounds]


class Tape:
    """Things end to end, as stored or permuted by a key; those of length 0 are left out.

    >>> Tape(np.array([3, 0, 4]), AS_STORED).cut(np.array([2, 5]), np.array([5, 7])).each()
    [[(0, 2, 3), (2, 0, 2)], [(2, 2, 4)]]
    """

    def __init__(self, lengths: NDArray[np.integer], key: int) -> None:
        numbers = np.arange(len(lengths), dtype=np.int64)
        if key != AS_STORED:
            numbers = Permutation(len(lengths), seed=key, epoch=0)(numbers)
        self.numbers = numbers[lengths[numbers] > 0]
        own = lengths[self.numbers]
        self.origins = (np.cumsum(lengths, dtype=np.int64) - lengths)[self.numbers]
        self.edges = np.zeros(len(own) + 1, dtype=np.int64)  # where things begin on the tape
        np.cumsum(own, dtype=np.int64, out=self.edges[1:])

    def cut(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Pieces:
        """Return the pieces of stretches of the tape, none of which is empty."""
        return cut(self.numbers, self.origins, self.edges, starts, stops)


def cut(
    numbers: NDArray[np.int64],
    origins: NDArray[np.int64],
    edges: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> Pieces:
    """Cut stretches, none of them empty, from things that begin at `edges`."""
    first = edges.searchsorted(starts, "right")
    first -= 1
    counts = edges.searchsorted(stops, "left")
    counts -= first
    places = ragged(first, counts)
    begins = edges[places]
    piece_starts = starts.repeat(counts)
    piece_starts -= begins
    np.maximum(piece_starts, 0, out=piece_starts)
    piece_stops = np.minimum(stops.repeat(counts), edges[places + 1])
    piece_stops -= begins
    return Pieces(numbers[places], origins[places], piece_starts, piece_stops, counts)


def ragged(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `counts` numbers from each of `firsts` on, one row after the other.

    >>> ragged(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    ends = counts.cumsum()
    shifts = firsts - ends
    shifts += counts
    numbers: NDArray[np.int64] = shifts.repeat(counts)
    numbers += np.arange(len(numbers))
    return numbers


_MOST = 1 << 22  # documents; they take 24 bytes each
_FIRST = 1 << 12
_END = np.iinfo(np.int64).max


class TapePool:
    """Tapes by key and block.

    `make` makes one, and says which document is its number 0, and which token that begins with.
    """

    def __init__(self, make: Callable[[int, int], tuple[Tape, int, int]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._clear(_FIRST)

    def _clear(self, capacity: int) -> None:
        self._places: dict[tuple[int, int], int] = {}  # where blocks begin
        self._edges = np.full(capacity, _END)
        self._numbers = np.zeros(capacity, dtype=np.int64)
        self._origins = np.zeros(capacity, dtype=np.int64)
        self._used = 0
        self._next = 0  # the place where another block may begin

    def cut(
        self,
        key: int,
        blocks: NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> Pieces:
        """Return the pieces of stretches, each of the block that stands beside it."""
        wanted = [(key, block) for block in blocks.tolist()]
        with self._lock:
            missing = [each for each in dict.fromkeys(wanted) if each not in self._places]
            if missing and not self._add(missing):
                self._clear(_FIRST)
                self._add(list(dict.fromkeys(wanted)), needed=True)
            places = np.array([self._places[each] for each in wanted], dtype=np.int64)
            starts, stops = starts + places, stops + places
            return cut(self._numbers, self._origins, self._edges, starts, stops)

    def _add(self, wanted: list[tuple[int, int]], *, needed: bool = False) -> bool:
        """Add the tapes of blocks; return False if there is no room for them."""
        made = [(each, *self._make(*each)) for each in wanted]
        used = self._used + sum(len(tape.edges) for _, tape, _, _ in made)
        if used > _MOST and not needed:
            return False
        if used >= len(self._edges):
            self._grow(2 * used)
        for each, tape, first, origin in made:
            there = slice(self._used, self._used + len(tape.edges))
            self._edges[there] = tape.edges + self._next
            self._numbers[there][:-1] = tape.numbers + first
            self._origins[there][:-1] = tape.origins + origin
            self._places[each] = self._next
            self._used, self._next = there.stop, self._next + int(tape.edges[-1]) + 1
        return True

    def _grow(self, capacity: int) -> None:
        used = self._used
        for name, unused in (("_edges", _END), ("_numbers", 0), ("_origins", 0)):
            larger = np.full(capacity, unused, dtype=np.int64)
            larger[:used] = getattr(self, name)[:used]
            setattr(self, name, larger)
