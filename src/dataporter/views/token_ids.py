"""The token ids of a document: a column that holds them, or a text that is tokenised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.arguments import did_you_mean
from dataporter.errors import OptionError

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
