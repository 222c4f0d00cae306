"""Batches of token sequences: padding, attention masks, labels; from ids or from text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.arguments import check_int
from dataporter.errors import CollationError, OptionError, OptionTypeError
from dataporter.fetch import draws_nothing
from dataporter.fetch.ragged import IGNORED, Ragged, Side, flatten, is_sequence, padded
from dataporter.fetch.randomness import call_seeded
from dataporter.fetch.rows import check_rows, collate_values, columns_of, take_column
from dataporter.training.masking import mask_tokens, row_keys
from dataporter.training.tensor_collator import array_of_numbers, pad, rows_of_numbers


class LanguageModelingDataCollator:
    """Makes one padded batch of token sequences, with attention mask and labels.

    A row is a dict with `input_ids` (a list, an array or a tensor), a dict with `text`, or
    just the ids or the text. The tokenizer is any callable that takes a list of strings and
    returns `input_ids`, like Hugging Face's tokenizers. Rows of a `TensorDataset` of ids will do.

    >>> collator = LanguageModelingDataCollator()
    >>> batch = collator([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
    >>> batch["labels"]
    tensor([[   5,    6,    7],
            [   8, -100, -100]])
    >>> batch["attention_mask"]
    tensor([[1, 1, 1],
            [1, 0, 0]])

    Labels: `labels` of the rows are kept, padded with -100. Otherwise labels are a copy of the
    ids, with -100 where the attention mask is 0. With `mlm=True` they are the ids of the masked
    tokens, and -100 elsewhere; rows with `labels` are then refused. With `own_labels_only=True`,
    for tasks other than language modelling, only the rows' own `labels` or `label` are used.

    `max_length` truncates columns of tokens: `input_ids`, all that the tokenizer returns,
    `attention_mask`, `token_type_ids`, `special_tokens_mask`, `position_ids`, `loss_mask`,
    `decoder_input_ids`, `decoder_attention_mask`, and those of `token_columns`. `labels` are
    tokens if `token_labels`, by default unless `own_labels_only`. `pad_to_multiple_of` rounds the
    padded length of these columns up, even above `max_length`. Their integers have 64 bits.

    Every other column is kept whole, with its own dtype (64 bits for Python's numbers):
    sequences of numbers are stacked, padded with 0 if their lengths differ, and everything else
    gets default collation.

    `padding_side`, `pad_token_id`, `mask_token_id`, `vocab_size` and `special_token_ids` default
    to the tokenizer's. Without a tokenizer, ids are padded with 0 on the right.

    In a dataporter loader, masks depend on the loader's seed, the epoch and the position.
    Elsewhere they depend on `seed` or `generator`, by default torch's global generator.
    """

    def __init__(
        self,
        tokenizer: Callable[..., Mapping[str, Any]] | None = None,
        *,
        mlm: bool = False,
        mlm_probability: float = 0.15,
        own_labels_only: bool = False,
        token_labels: bool | None = None,
        token_columns: Sequence[str] = (),
        max_length: int | None = None,
        padding_side: Side | None = None,
        pad_to_multiple_of: int | None = None,
        pad_token_id: int | None = None,
        mask_token_id: int | None = None,
        vocab_size: int | None = None,
        special_token_ids: Sequence[int] | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if tokenizer is not None and not callable(tokenizer):
            msg = f"tokenizer must be callable or None, found {type(tokenizer).__name__}."
            raise OptionTypeError(msg)
        _check_side(padding_side)
        for name, number in {
            "max_length": max_length,
            "pad_to_multiple_of": pad_to_multiple_of,
            "vocab_size": vocab_size,
        }.items():
            check_int(name, number, least=1, optional=True)
        if mlm and own_labels_only:
            msg = "mlm=True conflicts with own_labels_only=True. Remove one of them."
            raise OptionError(msg)
        if not 0 < mlm_probability <= 1:
            msg = f"mlm_probability must be above 0 and at most 1, found {mlm_probability!r}."
            raise OptionError(msg)
        if seed is not None and generator is not None:
            msg = "seed conflicts with generator. Remove one of them."
            raise OptionError(msg)
        if isinstance(token_columns, str):
            msg = (
                "token_columns must be a list of column names, found the str "
                f"{token_columns!r}. Pass [{token_columns!r}]."
            )
            raise OptionTypeError(msg)
        self.tokenizer = tokenizer
        self.mlm = mlm
        self.mlm_probability = mlm_probability
        self.own_labels_only = own_labels_only
        self.token_labels = not own_labels_only if token_labels is None else token_labels
        self.token_columns = tuple(token_columns)
        self.max_length = max_length
        self.padding_side = padding_side
        self.pad_to_multiple_of = pad_to_multiple_of
        self.pad_token_id = pad_token_id
        self.mask_token_id = mask_token_id
        self.vocab_size = vocab_size
        self.special_token_ids = special_token_ids
        self.generator = generator if seed is None else torch.Generator().manual_seed(seed)
        if mlm:
            self._mask_token_id()
            self._vocab_size()

    @draws_nothing
    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        check_rows(rows)
        columns, tokenised = self._columns(rows)
        tokens = _of_integers(flatten(columns.pop("input_ids"), "input_ids"), "input_ids")
        whole_lengths = tokens.lengths
        tokens = tokens.cut(self.max_length)
        places = tokens.places(tokens.width(self.pad_to_multiple_of), self._side())

        given = self._taken(columns, "attention_mask", whole_lengths)
        attended = None if given is None else given.flat != 0
        special = self._taken(columns, "special_tokens_mask", whole_lengths)
        own_labels = take_column(columns, self._label_names())
        if own_labels is not None:
            self._check_labels(own_labels, whole_lengths)

        ids, labels = tokens.flat, None
        if own_labels is None and self.mlm:
            ids, labels = self._masked(tokens, attended, special)
        elif own_labels is None and not self.own_labels_only:
            labels = ids if attended is None else np.where(attended, ids, IGNORED)
        batch: dict[str, Any] = {
            "input_ids": padded(ids, places, self._fill(places)),
            "attention_mask": (
                torch.from_numpy(places.astype(np.int64))
                if given is None
                else padded(given.flat, places, 0)
            ),
        }
        if own_labels is not None:
            batch["labels"] = self._column(
                "labels", own_labels, fill=IGNORED, are_tokens=self.token_labels
            )
        elif labels is not None:
            batch["labels"] = padded(labels, places, IGNORED)
        of_tokens = {*_TOKEN_COLUMNS, *self.token_columns, *tokenised}
        for name, values in columns.items():
            batch[name] = self._column(name, values, fill=0, are_tokens=name in of_tokens)
        return batch

    def _columns(self, rows: Sequence[Any]) -> tuple[dict[str, list[Any]], Sequence[str]]:
        """Return the rows as columns, among them `input_ids`, and those made by the tokenizer."""
        if isinstance(rows[0], str):
            columns = {"text": list(rows)}
        elif isinstance(rows[0], Mapping):
            columns = columns_of(rows)
        else:
            columns = {"input_ids": _bare_ids(rows)}
        if "input_ids" in columns:
            return columns, ()
        if "text" not in columns:
            found = ", ".join(map(repr, columns)) or "(none)"
            msg = (
                f"the rows have neither 'input_ids' nor 'text', found the columns {found}. Rename "
                "the column of ids or texts in the dataset."
            )
            raise CollationError(msg)
        tokenised = self._tokenised(columns.pop("text"))
        return columns | tokenised, list(tokenised)

    def _tokenised(self, texts: list[Any]) -> dict[str, list[Any]]:
        if self.tokenizer is None:
            msg = (
                "a tokenizer is required, since the rows have 'text' and no 'input_ids'. "
                "Pass tokenizer=, or tokenise the dataset."
            )
            raise CollationError(msg)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                msg = (
                    f"column 'text', row {number}: expected a str, found {text!r}. Filter such "
                    "rows out of the dataset."
                )
                raise CollationError(msg)
        limits = {} if self.max_length is None else _truncation(self.max_length)
        encoded = call_seeded(self.tokenizer, texts, **limits)
        if "input_ids" not in encoded or len(encoded["input_ids"]) != len(texts):
            msg = (
                f"the tokenizer must return {len(texts)} 'input_ids', one for each text, found "
                f"{', '.join(f'{len(encoded[name])} {name!r}' for name in encoded) or 'nothing'}."
            )
            raise CollationError(msg)
        return {name: list(encoded[name]) for name in encoded}

    def _taken(
        self, columns: dict[str, list[Any]], name: str, lengths: NDArray[np.int64]
    ) -> Ragged | None:
        """Remove and return a column with one number per token, or None if there is none."""
        values = take_column(columns, [name])
        if values is None:
            return None
        column = _of_integers(flatten(values, name), name)
        unequal = np.flatnonzero(column.lengths != lengths)
        if unequal.size:
            number = int(unequal[0])
            msg = (
                f"column {name!r}, row {number}: expected {lengths[number]} numbers, one per "
                f"input id, found {column.lengths[number]}."
            )
            raise CollationError(msg)
        return column.cut(self.max_length)

    def _masked(
        self, tokens: Ragged, attended: NDArray[np.bool_] | None, special: Ragged | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        maskable = ~np.isin(tokens.flat, self._special_token_ids())
        if attended is not None:
            maskable &= attended
        if special is not None:
            maskable &= special.flat == 0
        return mask_tokens(
            tokens,
            maskable,
            row_keys(len(tokens.lengths), self.generator),
            probability=self.mlm_probability,
            mask_token_id=self._mask_token_id(),
            vocab_size=self._vocab_size(),
        )

    def _check_labels(self, labels: list[Any], lengths: NDArray[np.int64]) -> None:
        if self.mlm:
            msg = (
                "mlm=True makes the labels, but the rows have 'labels' already. Remove that column "
                "from the dataset to mask tokens, or pass mlm=False (or another task_type) to "
                "train on those labels."
            )
            raise CollationError(msg)
        if self.own_labels_only or self.max_length is None or not all(map(is_sequence, labels)):
            return
        for number, (row, length) in enumerate(zip(labels, lengths, strict=True)):
            if len(row) > self.max_length and len(row) != length:
                msg = (
                    f"column 'labels', row {number}: {len(row)} labels for {length} input ids "
                    f"would be cut to max_length={self.max_length}. For labels of anything but "
                    "these tokens pass own_labels_only=True, or use a task of another task_type."
                )
                raise CollationError(msg)

    def _column(self, name: str, values: list[Any], *, fill: int, are_tokens: bool) -> Any:
        what = f"column {name!r}"
        if {*map(type, values)} == {int, float}:  # else the first row's type decides
            return torch.from_numpy(array_of_numbers(values, what))
        if not all(map(is_sequence, values)):
            return collate_values(values, what)
        if not are_tokens:
            return pad(rows_of_numbers(values, what), fill, what, self._side())
        column = flatten(values, name).cut(self.max_length)
        width = column.width(self.pad_to_multiple_of)
        return padded(column.flat, column.places(width, self._side()), fill)

    def _label_names(self) -> list[str]:
        # In language modelling a `label` is the class of the text, not a label of its tokens.
        return ["labels", "label"] if self.own_labels_only else ["labels"]

    def _side(self) -> Side:
        return self.padding_side or getattr(self.tokenizer, "padding_side", None) or "right"

    def _fill(self, places: NDArray[np.bool_]) -> int:
        """Return the id to pad with. A tokenizer needs one only if there is padding."""
        if self.pad_token_id is not None:
            return self.pad_token_id
        known = getattr(self.tokenizer, "pad_token_id", None)
        if known is not None:
            return int(known)
        if self.tokenizer is None or places.all():
            return 0
        msg = (
            "the tokenizer has no padding token, but the rows need padding. Pass pad_token_id=, or "
            "set tokenizer.pad_token, for example to tokenizer.eos_token."
        )
        raise OptionError(msg)

    def _mask_token_id(self) -> int:
        known = self.mask_token_id
        if known is None:
            known = getattr(self.tokenizer, "mask_token_id", None)
        if known is None:
            msg = (
                "masked language modelling requires a mask token. Pass a tokenizer= that has a "
                "mask_token, or pass mask_token_id= to LanguageModelingDataCollator(mlm=True) and "
                "use that as collate_fn=."
            )
            raise OptionError(msg)
        return int(known)

    def _vocab_size(self) -> int:
        if self.vocab_size is not None:
            return self.vocab_size
        try:
            return len(self.tokenizer)  # type: ignore[arg-type]  # most tokenizers have a length
        except TypeError:
            msg = (
                "masked language modelling requires the size of the vocabulary. Pass a tokenizer= "
                "that has a length, or pass vocab_size= to LanguageModelingDataCollator(mlm=True) "
                "and use that as collate_fn=."
            )
            raise OptionError(msg) from None

    def _special_token_ids(self) -> list[int]:
        given = self.special_token_ids
        known = getattr(self.tokenizer, "all_special_ids", ()) if given is None else given
        padding = self.pad_token_id
        return [*known, self._mask_token_id(), *(() if padding is None else (padding,))]

    def __repr__(self) -> str:
        kind = "masked" if self.mlm else "causal"
        return f"{type(self).__name__}({kind}, max_length={self.max_length})"


TextCollator = LanguageModelingDataCollator

# Columns of one number for each token, by the names that are usual.
_TOKEN_COLUMNS = (
    *("token_type_ids", "position_ids", "loss_mask"),
    *("decoder_input_ids", "decoder_attention_mask"),
)


def _bare_ids(rows: Sequence[Any]) -> list[Any]:
    """Return rows of ids, also those of a `TensorDataset` of ids, each a tuple of one row."""
    first = rows[0]
    if not isinstance(first, tuple | list) or not first or not is_sequence(first[0]):
        return list(rows)
    if len(first) > 1:
        msg = (
            f"row 0 is a {type(first).__name__} of {len(first)} sequences, and nothing says which "
            "are the ids. Let the dataset return a dict of columns, such as {'input_ids': ..., "
            "'labels': ...}."
        )
        raise CollationError(msg)
    return [row[0] for row in rows]


def _truncation(max_length: int) -> dict[str, Any]:
    return {"truncation": True, "max_length": max_length}


def _of_integers(column: Ragged, name: str) -> Ragged:
    if column.flat.dtype != np.int64:
        msg = f"column {name!r} must hold integers, found floats. Convert it in the dataset."
        raise CollationError(msg)
    return column


def _check_side(side: object) -> None:
    if side not in (None, "left", "right"):
        msg = f"padding_side must be 'left' or 'right', found {side!r}."
        raise OptionError(msg)
