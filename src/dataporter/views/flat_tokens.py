"""Token ids as they lie in files: slices of a column of lists, without a sample around them."""

from __future__ import annotations

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
        self._checked: set[int] = set()  # blocks whose lengths are those that were counted

    def slices(
        self, pieces: Pieces, length: int, pad_id: int
    ) -> tuple[list[NDArray[Any]], np.dtype[Any]] | None:
        """Return the tokens of pieces, without copying them, and the dtype that holds them.

        None if they do not lie flat. Padding is `length` tokens at most.
        """
        blocks = self._begins.searchsorted(pieces.origins, "right")
        blocks -= 1
        shifts = pieces.origins - self._begins[blocks]
        values: dict[int, NDArray[Any]] = {}
        for block in set(blocks.tolist()):
            if block != PADDING:
                found = self._data.flat_lists(block, self._column)
                if found is None or found.values.dtype.kind not in "iu":
                    return None
                if block not in self._checked:
                    self._check(block, found.offsets)
                values[block] = found.values[found.offsets[0] :]
        dtype = np.result_type(*{each.dtype for each in values.values()})
        if PADDING in pieces.numbers:
            values[PADDING] = padding(pad_id, length, dtype)
            shifts[blocks == PADDING] = 0
        columns = (blocks, shifts + pieces.starts, shifts + pieces.stops)
        slices = [
            values[block][start:stop]
            for block, start, stop in zip(*map(np.ndarray.tolist, columns), strict=True)
        ]
        return slices, dtype

    def _check(self, block: int, offsets: memoryview) -> None:
        first, end = self._bounds[block : block + 2]
        check_lengths(np.arange(first, end), np.diff(np.asarray(offsets)), self._lengths)
        self._checked.add(block)


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
