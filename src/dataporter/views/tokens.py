"""The tokens of documents: their ids, slices of columns as they lie in files, and boundaries.

Ids are a column that holds them, or come of a text that is tokenised.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.arguments import did_you_mean
from dataporter.errors import OptionError
from dataporter.fetch.collate import Empty, anywhere
from dataporter.views.windows import Pieces, sums

IDS = "tokens"  # the column of token ids, if none is named
TEXT = "text"  # the column that is tokenised, if none is named


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Reads token ids from samples. `by` is a column; None if it is not named."""

    by: str | None = None
    tokenizer: Callable[[Any], Any] | None = None

    @property
    def column(self) -> str:
        """The column that is read, if samples have columns."""
        return self.by or (IDS if self.tokenizer is None else TEXT)

    def __call__(self, index: int, sample: Any) -> NDArray[Any]:
        """Return the token ids of the document at an index; shape (tokens,)."""
        if type(sample) is dict and self.tokenizer is None:  # the usual case, at once
            known = sample.get(self.column)
            if type(known) is np.ndarray and known.ndim == 1 and known.dtype.kind in "iu":
                return known
        value = self._value(index, sample)
        found = value if self.tokenizer is None else self._tokenized(index, value)
        if isinstance(found, torch.Tensor):
            found = found.detach().cpu().numpy()
        try:
            ids = np.asarray(found)
        except ValueError as error:
            raise self._no_ids(index, found) from error
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise self._no_ids(index, found)
        return ids if ids.size else ids.astype(np.int64)

    def count(self, index: int, sample: Any) -> int:
        """Return the number of tokens of the document at an index."""
        return len(self(index, sample))

    def _value(self, index: int, sample: Any) -> Any:
        if not isinstance(sample, Mapping):
            if self.by is None:
                return sample
            msg = (
                f"document {index:,} has no columns: it is a {type(sample).__name__}. Leave out "
                f"by={self.by!r}."
            )
            raise OptionError(msg)
        if self.column not in sample:
            hint = did_you_mean(self.column, map(str, sample))
            msg = (
                f"document {index:,} has no column {self.column!r}.{hint} It has "
                f"{', '.join(map(repr, sample))}. Name the column by by=."
            )
            raise OptionError(msg)
        return sample[self.column]

    def _tokenized(self, index: int, value: Any) -> Any:
        tokenizer: Any = self.tokenizer
        try:
            found = tokenizer(value)
        except Exception as error:
            msg = (
                f"the tokenizer failed for document {index:,}: {type(error).__name__}: {error}. "
                f"It was given {type(value).__name__} {value!r:.60}."
            )
            raise OptionError(msg) from error
        if isinstance(found, Mapping) and "input_ids" in found:  # Hugging Face's
            return found["input_ids"]
        return getattr(found, "ids", found)  # of the package tokenizers

    def _no_ids(self, index: int, found: Any) -> OptionError:
        shape = f" of shape {found.shape}" if isinstance(found, np.ndarray) else ""
        if self.tokenizer is not None:
            return OptionError(
                f"the tokenizer must return a list of token ids, found {type(found).__name__}"
                f"{shape} {found!r:.60} for document {index:,}."
            )
        hint = " Pass tokenizer= to make tokens of texts." if isinstance(found, str) else ""
        return OptionError(
            f"document {index:,} has no token ids: expected a list of integers in "
            f"{self.column!r}, found {type(found).__name__}{shape} {found!r:.60}.{hint}"
        )


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
        present = set(blocks.tolist())
        for block in present:
            if block != PADDING:
                found = self._data.flat_lists(block, self._column)
                if found is None or any(part.values.dtype.kind not in "iu" for part in found):
                    return None
                if block not in self._parts:
                    self._parts[block] = self._begins_of(block, found)
                values[block] = [part.values[part.offsets[0] :] for part in found]
        dtypes = {part.dtype for parts in values.values() for part in parts}
        dtype = np.result_type(*dtypes) if len(dtypes) > 1 else dtypes.pop()
        begins = self._parts
        if PADDING in present:
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


Boundary = Literal["position_ids", "loss_mask", "cu_seqlens"]

PADDING = -1  # the number of a piece that fills a sample up


def padded(pieces: Pieces, length: int) -> Pieces:
    """Add a piece of padding to each sample that has fewer than `length` tokens."""
    sizes = pieces.stops - pieces.starts
    if int(sizes.sum()) == length * len(pieces.counts):
        return pieces
    ends = np.cumsum(pieces.counts)
    tokens = np.append(0, np.cumsum(sizes))
    missing = length - (tokens[ends] - tokens[ends - pieces.counts])
    short = np.flatnonzero(missing)
    counts = pieces.counts.copy()
    counts[short] += 1
    at = ends[short]
    return Pieces(
        np.insert(pieces.numbers, at, PADDING),
        np.insert(pieces.origins, at, PADDING),
        np.insert(pieces.starts, at, 0),
        np.insert(pieces.stops, at, missing[short]),
        counts,
    )


def boundaries_of(
    pieces: Pieces, length: int, wanted: Sequence[Boundary], empty: Empty | None = None
) -> dict[str, Any]:
    """Say where the documents of samples begin, in the ways that are wanted.

    What is large is written into `empty(shape, dtype)`, if it is given. `cu_seqlens` are a list of
    tensors, the others one tensor, with a row a sample.
    """
    found: dict[str, Any] = {}
    sizes = pieces.stops - pieces.starts
    begins = np.cumsum(sizes) - sizes  # counted over all samples
    if "position_ids" in wanted:
        tokens = len(pieces.counts) * length
        places = (empty or anywhere)((tokens,), torch.int64)
        np.subtract(np.arange(tokens), np.repeat(begins, sizes), out=places.numpy())
        found["position_ids"] = places.view(-1, length)
    if "loss_mask" in wanted:
        mask = np.repeat(pieces.numbers != PADDING, sizes)
        mask[begins] = False
        found["loss_mask"] = torch.from_numpy(mask).view(-1, length)
    if "cu_seqlens" in wanted:
        each = np.split((begins % length).astype(np.int32), np.cumsum(pieces.counts)[:-1])
        found["cu_seqlens"] = [torch.from_numpy(np.append(own, np.int32(length))) for own in each]
    return found
