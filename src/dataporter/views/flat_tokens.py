"""Token ids as they lie in files: slices of a column of lists, without a sample around them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import OptionError
from dataporter.views.boundaries import PADDING
from dataporter.views.tape import Pieces
from dataporter.views.windows import sums


class FlatTokens:
    """The tokens of documents in blocks, if a dataset can show them so (`flat_lists`)."""

    def __init__(
        self, data: Any, column: str, bounds: NDArray[np.int64], lengths: NDArray[np.int32]
    ) -> None:
        self._data, self._column = data, column
        self._bounds, self._lengths = bounds, lengths
        self._begins = np.append(0, np.cumsum(sums(lengths, bounds)))  # first token of each block
        # Where parts of a block begin, in its tokens. Their lengths are those that were counted.
        self._parts: dict[int, list[int]] = {}

    def slices(
        self, pieces: Pieces, length: int, pad_id: int
    ) -> tuple[list[NDArray[Any]], np.dtype[Any]] | None:
        """Return the tokens of pieces, without copying them, and the dtype that holds them.

        None if they do not lie flat. Padding is `length` tokens at most.
        """
        blocks = self._begins.searchsorted(pieces.origins, "right")
        blocks -= 1
        shifts = pieces.origins - self._begins[blocks]
        values: dict[int, list[NDArray[Any]]] = {}
        for block in set(blocks.tolist()):
            if block != PADDING:
                found = self._data.flat_lists(block, self._column)
                if found is None or any(part.values.dtype.kind not in "iu" for part in found):
                    return None
                if block not in self._parts:
                    self._parts[block] = self._begins_of(block, found)
                values[block] = [part.values[part.offsets[0] :] for part in found]
        dtype = np.result_type(*{part.dtype for parts in values.values() for part in parts})
        begins = self._parts
        if PADDING in pieces.numbers:
            values[PADDING], begins = [padding(pad_id, length, dtype)], {**begins, PADDING: [0]}
            shifts[blocks == PADDING] = 0
        columns = (blocks, shifts + pieces.starts, shifts + pieces.stops)
        slices = []
        for block, start, stop in zip(*map(np.ndarray.tolist, columns), strict=True):
            parts = values[block]
            if len(parts) == 1:
                slices.append(parts[0][start:stop])
            else:  # a piece is of one document, and so of one part
                number = bisect_right(begins[block], start) - 1
                first = begins[block][number]
                slices.append(parts[number][start - first : stop - first])
        return slices, dtype

    def _begins_of(self, block: int, parts: Sequence[Any]) -> list[int]:
        first, end = self._bounds[block : block + 2]
        lengths = [np.diff(np.asarray(part.offsets)) for part in parts]
        check_lengths(np.arange(first, end), np.concatenate(lengths), self._lengths)
        return [0, *accumulate(int(each.sum()) for each in lengths[:-1])]


def check_lengths(
    documents: NDArray[np.int64], found: NDArray[np.integer], counted: NDArray[np.int32]
) -> None:
    """Raise if documents have other numbers of tokens than were counted."""
    expected = counted[documents]
    if np.array_equal(found, expected):
        return
    wrong = int(np.flatnonzero(found != expected)[0])
    msg = (
        f"document {int(documents[wrong]):,} has {int(found[wrong]):,} tokens, but "
        f"{int(expected[wrong]):,} were counted. Its tokens differ from reading to reading, or the "
        "data has changed since they were counted."
    )
    raise OptionError(msg)


def padding(pad_id: int, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return so many tokens of padding."""
    check_fits("pad_id", pad_id, dtype)
    return np.full(length, pad_id, dtype=dtype)


def check_fits(option: str, value: int, dtype: np.dtype[Any]) -> None:
    """Raise if a token id does not fit a dtype."""
    limits = np.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        msg = f"{option}={value} does not fit tokens of dtype {dtype.name}. Choose another."
        raise OptionError(msg)
