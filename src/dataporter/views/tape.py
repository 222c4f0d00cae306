"""A tape: things of known lengths, laid end to end in an order chosen by a key.

Packed windows are cut from tapes. The tape of an epoch has the blocks of the data, each of which is
a tape of its documents, or the documents themselves if the data has no blocks.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Permutation

# Number, first token, and the token after the last one, of a thing or of a part of it.
Piece: TypeAlias = tuple[int, int, int]

AS_STORED = 0  # the key of the order in which things are stored


class Tape:
    """Things end to end, as stored or permuted by a key.

    >>> Tape(np.array([3, 0, 4]), AS_STORED).cut(2, 5)
    [(0, 2, 3), (2, 0, 2)]
    """

    def __init__(self, lengths: NDArray[np.integer], key: int) -> None:
        numbers = np.arange(len(lengths), dtype=np.int64)
        self.numbers = (
            numbers if key == AS_STORED else Permutation(len(lengths), seed=key, epoch=0)(numbers)
        )
        self.edges = np.zeros(len(lengths) + 1, dtype=np.int64)  # where things begin on the tape
        np.cumsum(lengths[self.numbers], dtype=np.int64, out=self.edges[1:])

    def cut(self, start: int, stop: int) -> list[Piece]:
        """Return the pieces of which a stretch of the tape consists; empty things are left out."""
        first = int(self.edges.searchsorted(start, "right")) - 1
        end = int(self.edges.searchsorted(stop, "left"))
        numbers, edges = self.numbers[first:end].tolist(), self.edges[first : end + 1].tolist()
        return [
            (number, max(start - edges[place], 0), min(stop, edges[place + 1]) - edges[place])
            for place, number in enumerate(numbers)
            if edges[place] < edges[place + 1]
        ]
