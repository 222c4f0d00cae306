"""Best fit: whole documents in bins of a fixed length, computed from the lengths alone.

Documents are taken from the longest to the shortest, and each goes into the bin in which it leaves
the least room (best-fit decreasing). A document that is longer than a bin is split first. Bins are
made from runs of neighbouring documents, such as those of a few blocks, so that the documents of a
bin lie together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataporter.law.tracks import Spans
from dataporter.views.windows import Pieces, ragged

# Neighbouring blocks are packed together until they have so many documents, and so many bins of
# tokens: with fewer, the last bins of each run would leave much room.
_LEAST_DOCUMENTS = 256
_LEAST_BINS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Documents in bins. A document with more tokens than a bin is there in several parts."""

    length: int  # tokens of a bin
    documents: NDArray[np.int64]  # of each part, bin by bin; shape (parts,)
    starts: NDArray[np.int64]  # first token of each part
    origins: NDArray[np.int64]  # the tokens that are stored before the document of each part
    ends: NDArray[np.int64]  # where bins end in these; shape (bins,)
    lengths: NDArray[np.int32]  # tokens of each document

    @property
    def count(self) -> int:
        """The number of bins."""
        return len(self.ends)

    @property
    def space(self) -> int:
        """The number that all indices are below: a bin is the same in every epoch."""
        return self.count

    def pieces(self, indices: NDArray[np.int64]) -> Pieces:
        """Return the documents of bins, and which of their tokens."""
        ends = self.ends[indices]
        first = np.where(indices > 0, self.ends[indices - 1], 0)
        counts = ends - first
        parts = ragged(first, counts)
        documents, starts = self.documents[parts], self.starts[parts]
        stops = np.minimum(starts + self.length, self.lengths[documents])
        return Pieces(documents, self.origins[parts], starts, stops, counts)

    def per_block(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the bins that begin with a document of each block.

        `bounds` are the first documents of the blocks, and the number of all.
        """
        begins = np.append(0, self.ends[:-1]) if self.count else self.ends
        return np.diff(np.searchsorted(self.documents[begins], bounds))

    def spans(self, bounds: NDArray[np.int64]) -> Spans | None:
        """Return the blocks that bins are made of, if some are made of several; as `per_block`."""
        blocks = np.searchsorted(bounds, self.documents, side="right") - 1
        bins = np.repeat(np.arange(self.count), np.diff(self.ends, prepend=0))
        pairs = np.unique(bins * len(bounds) + blocks)
        return Spans.over(self.per_block(bounds), *np.divmod(pairs, len(bounds)))


def best_fit(lengths: NDArray[np.int32], bounds: NDArray[np.int64], length: int) -> Bins:
    """Put documents into bins of `length` tokens.

    Bins are numbered by their first documents. `bounds` are the first documents of the blocks, and
    the number of all.

    >>> bins = best_fit(np.array([3, 9, 2, 4], np.int32), np.array([0, 4]), 5)
    >>> bins.pieces(np.arange(bins.count)).each()
    [[(0, 0, 3), (2, 0, 2)], [(1, 0, 5)], [(1, 5, 9)], [(3, 0, 4)]]
    """
    packed = [_packed(lengths[a:b], int(a), length) for a, b in _runs(lengths, bounds, length)]
    none = np.zeros(0, dtype=np.int64)
    documents = np.concatenate([none, *(each[0] for each in packed)])
    starts = np.concatenate([none, *(each[1] for each in packed)])
    sizes = np.concatenate([none, *(each[2] for each in packed)])
    origins = (np.cumsum(lengths, dtype=np.int64) - lengths)[documents]
    return Bins(length, documents, starts, origins, np.cumsum(sizes), lengths)


def _runs(
    lengths: NDArray[np.int32], bounds: NDArray[np.int64], length: int
) -> list[tuple[int, int]]:
    """Return the runs of documents that are packed together, of one block or of several."""
    runs: list[tuple[int, int]] = []
    tokens, first = 0, int(bounds[0])
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        tokens += int(lengths[begin:end].sum(dtype=np.int64))
        if end - first >= _LEAST_DOCUMENTS and tokens >= _LEAST_BINS * length:
            runs.append((first, end))
            tokens, first = 0, end
    if first < bounds[-1]:  # too few to be alone, unless they are all
        first = runs.pop()[0] if runs else first
        runs.append((first, int(bounds[-1])))
    return runs


def _packed(
    lengths: NDArray[np.int32], first: int, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Pack the documents from number `first` on: documents and starts of parts, parts of bins."""
    counts = -(-lengths.astype(np.int64) // length)  # parts of each document; 0 if it is empty
    documents = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)) * length
    sizes = np.minimum(lengths[documents] - starts, length)
    by_size = np.argsort(-sizes, kind="stable")
    bins = np.empty(len(sizes), dtype=np.int64)
    bins[by_size] = _best_fitting(sizes[by_size].tolist(), length)
    # Bins in the order of their first parts, and parts in the order of the data.
    _, seen = np.unique(bins, return_index=True)
    renumbered = np.argsort(np.argsort(seen))[bins]
    by_bin = np.argsort(renumbered, kind="stable")
    return documents[by_bin] + first, starts[by_bin], np.bincount(renumbered)


def _best_fitting(sizes: list[int], length: int) -> list[int]:
    """Return the bin of each size, which come from the largest to the smallest."""
    bins = []
    opened = 0
    with_room: list[list[int]] = [[] for _ in range(length)]  # bins by the room that they have
    rooms = 0  # bit r is set if there are bins with room r: a search costs a shift
    for size in sizes:
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            number = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, number = length, opened
            opened += 1
        bins.append(number)
        room -= size
        if room:
            if not with_room[room]:
                rooms |= 1 << room
            with_room[room].append(number)
    return bins
