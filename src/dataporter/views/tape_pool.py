"""The tapes of the blocks that were read from lately, as one, so that one search serves a batch.

Each block has a range of places of its own, far from the others, in one sorted array. If there is
no room for another one, all are dropped: those that are still in use are made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dataporter.views.tape import Pieces, Tape, cut

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
