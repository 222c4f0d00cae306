"""Sequences of unequal length as one flat array, and that array padded.

Token ids come as lists, arrays or tensors. Laying all rows end to end first makes every
later step, padding too, one operation on a whole array instead of one for each row.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.errors import CollationError

Side: TypeAlias = Literal["left", "right"]

IGNORED = -100  # the label of a token that no loss is computed for


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of numbers: `flat` holds them end to end, `lengths` says where each ends.

    `flat` is int64, or floats of the dtype that the rows have.
    """

    flat: NDArray[Any]
    lengths: NDArray[np.int64]

    def positions(self) -> NDArray[np.int64]:
        """Return the column of each number in its row, from 0."""
        ends = np.cumsum(self.lengths)
        return np.arange(len(self.flat)) - np.repeat(ends - self.lengths, self.lengths)

    def cut(self, longest: int | None) -> Ragged:
        """Keep at most the first `longest` numbers of each row."""
        if longest is None or self.lengths.max() <= longest:
            return self
        return Ragged(self.flat[self.positions() < longest], np.minimum(self.lengths, longest))

    def width(self, multiple: int | None) -> int:
        """Return the width that holds every row: at least 1, and a multiple of `multiple`."""
        longest = max(1, int(self.lengths.max()))
        return longest if multiple is None else -(-longest // multiple) * multiple

    def places(self, width: int, side: Side) -> NDArray[np.bool_]:
        """Return the places of the numbers in an array of `width` columns; `side` is padded."""
        columns = np.arange(width)
        if side == "left":
            return columns >= width - self.lengths[:, None]
        return columns < self.lengths[:, None]


def padded(flat: NDArray[Any], places: NDArray[np.bool_], fill: int) -> torch.Tensor:
    """Put numbers into their places, and `fill` everywhere else.

    >>> rows = flatten([[1, 2, 3], [4]], "x")
    >>> padded(rows.flat, rows.places(3, "left"), 0)
    tensor([[1, 2, 3],
            [0, 0, 4]])
    """
    whole = np.full(places.shape, fill, dtype=flat.dtype)
    whole[places] = flat
    return torch.from_numpy(whole)


def is_sequence(value: Any) -> bool:
    """Return True if this looks like a sequence of numbers."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim == 1
    return isinstance(value, list | tuple) and not (value and _is_compound(value[0]))


def flatten(rows: Sequence[Any], name: str) -> Ragged:
    """Lay rows of numbers end to end.

    >>> flatten([[1, 2, 3], torch.tensor([4])], "x").flat.tolist()
    [1, 2, 3, 4]
    """
    if all(type(row) is list for row in rows):
        lengths = np.array(list(map(len, rows)), dtype=np.int64)
        try:
            # Half the time of np.array, and unlike np.fromiter it takes no floats for ints.
            whole = array("q", list(chain.from_iterable(rows)))
        except (TypeError, OverflowError):
            pass  # not integers: below is found out what they are
        else:
            return Ragged(np.frombuffer(whole, dtype=np.int64), lengths)
    if all(map(_is_of_ids, rows)):
        lengths = np.array(list(map(len, rows)), dtype=np.int64)
        return Ragged(torch.cat(list(rows)).numpy(), lengths)  # a third of the time of arrays
    arrays = [_as_array(row, number, name) for number, row in enumerate(rows)]
    lengths = np.array(list(map(len, arrays)), dtype=np.int64)
    # An empty row has no dtype: that of an empty list or tensor is anything.
    return Ragged(np.concatenate([each for each in arrays if each.size] or arrays), lengths)


def _is_of_ids(row: Any) -> bool:
    """Return True if a tensor can be concatenated as it is."""
    return (
        type(row) is torch.Tensor
        and row.dtype is torch.int64
        and row.dim() == 1
        and row.device.type == "cpu"
    )


def _as_array(row: Any, number: int, name: str) -> NDArray[Any]:
    """One row as int64, or as floats of its own dtype."""
    try:
        numbers = row.detach().cpu().numpy() if isinstance(row, torch.Tensor) else np.asarray(row)
    except (TypeError, ValueError) as error:
        if isinstance(row, torch.Tensor):
            msg = (
                f"column {name!r}, row {number}: expected integers or floats of 16 to 64 bits that "
                f"NumPy has, found {row.dtype}. Convert it in the dataset, for example with "
                ".float()."
            )
            raise CollationError(msg) from error
        msg = f"column {name!r}, row {number}: expected a sequence of numbers, found {error}."
        raise CollationError(msg) from error
    if numbers.ndim != 1:
        msg = (
            f"column {name!r}, row {number}: expected a sequence of numbers, found "
            f"{type(row).__name__} of shape {numbers.shape}. Give one sequence for each row."
        )
        raise CollationError(msg)
    if numbers.size == 0:
        return np.empty(0, dtype=np.int64)  # an empty list is of any type
    if numbers.dtype == np.uint64 and numbers.max() > _MOST:
        msg = (
            f"column {name!r}, row {number}: {numbers.max()} does not fit into int64, the dtype of "
            "tokens. Convert it in the dataset."
        )
        raise CollationError(msg)
    if numbers.dtype.kind in "biu":
        return numbers.astype(np.int64, copy=False)
    if numbers.dtype.kind == "f":
        return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
    msg = f"column {name!r}, row {number}: expected numbers, found {numbers.dtype} {row!r}."
    raise CollationError(msg)


_MOST = np.iinfo(np.int64).max


def _is_compound(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple | dict) or getattr(value, "ndim", 0) > 0
