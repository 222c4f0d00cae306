"""Hugging Face datasets with smaller dtypes, and tokenised on request.

A batch is one read. Numbers, and lists of numbers of equal length, go from their Arrow columns
straight to tensors of the chosen dtype, without Python objects in between. The result equals
that of collating the rows one by one. Token columns of unequal lengths are padded. Datasets that
decode, or that have a format or a transform, are read row by row.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import index as as_index
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dataporter.arguments import check_int, did_you_mean
from dataporter.converters import KeyBasedDtypeConverter
from dataporter.converters.narrowing import OnOverflow
from dataporter.datasets.columns import (
    FILLS,
    Tokens,
    as_python_would,
    as_tensor,
    padding_id,
    stacked,
    tokens_of,
)
from dataporter.errors import CollationError, OptionError, OptionTypeError
from dataporter.fetch import draws_nothing
from dataporter.fetch.randomness import call_seeded
from dataporter.fetch.rows import check_rows, columns_of
from dataporter.sources.fingerprint import dataset_fingerprint


class HFDatasetWrapper(Dataset[Any]):
    """A Hugging Face dataset whose named columns are converted to other dtypes.

    >>> rows = [{"text": "good", "label": 1}, {"text": "bad", "label": 0}]  # or a datasets.Dataset
    >>> dataset = HFDatasetWrapper(rows, dtype_conversions={"label": "int32"})
    >>> dataset[0]
    {'text': 'good', 'label': tensor(1, dtype=torch.int32)}
    >>> dataset.collate_fn([dataset[0], dataset[1]])
    {'text': ['good', 'bad'], 'label': tensor([1, 0], dtype=torch.int32)}

    - `dtype_conversions`: dtypes by column, as for `KeyBasedDtypeConverter`. Other columns have
      64 bits per number, as in torch's collation.
    - `tokenizer`: called by `collate_fn` with a batch's texts, like a `transformers` tokenizer:
      `tokenizer(texts, padding=True, truncation=..., max_length=...)`. The columns that it
      returns replace the text. Without a tokenizer, nothing is tokenised. If rows have
      `input_ids` and no text, the tokenizer only decides how they are padded.
    - `text_column`: the column of texts.
    - `max_length`: the length to which the tokenizer truncates. None does not truncate.
    - `on_overflow`: treatment of values that do not fit: "raise", "clamp" or "wrap".
    - `pad_token_id`: the padding of `input_ids`, instead of the tokenizer's padding token.

    Token columns of unequal lengths are padded to the longest of the batch: `input_ids` with
    the padding token (0 if there is none but an `attention_mask`), `attention_mask` and
    `token_type_ids` with 0, `special_tokens_mask` with 1 and `labels` with -100. Padding goes to
    the right, or to the tokenizer's `padding_side`.

    >>> rows = [{"input_ids": [5, 6, 7], "labels": [6, 7, 8]}, {"input_ids": [9], "labels": [4]}]
    >>> dataset = HFDatasetWrapper(rows, {"input_ids": "int32"}, pad_token_id=0)
    >>> dataset.collate_fn([dataset[0], dataset[1]])["labels"]
    tensor([[   6,    7,    8],
            [   4, -100, -100]])

    The wrapper keeps the format that the dataset has now.
    """

    def __init__(
        self,
        hf_dataset: Any,
        dtype_conversions: Mapping[str, Any] | None = None,
        tokenizer: Callable[..., Any] | None = None,
        text_column: str = "text",
        max_length: int | None = None,
        *,
        on_overflow: OnOverflow = "raise",
        pad_token_id: int | None = None,
    ) -> None:
        check_dataset(hf_dataset)
        conversions = {} if dtype_conversions is None else dtype_conversions
        self.converter = KeyBasedDtypeConverter(conversions, on_overflow=on_overflow)
        self._named = set(conversions)
        self._dataset = hf_dataset
        self._tables: Any = None
        if _is_hugging_face(hf_dataset):
            self._dataset = copy.copy(hf_dataset)  # so that a format set later has no effect
            self._tables = _tables_of(self._dataset)
        self._tokenizer = tokenizer
        self._text_column = text_column
        self._max_length = max_length
        self._pad_token_id = pad_token_id
        _check_tokenizer(tokenizer, max_length)
        check_int("pad_token_id", pad_token_id, least=0, optional=True)
        columns = getattr(hf_dataset, "column_names", None)
        if columns is not None:
            self._has_texts(columns)  # or raise

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def _fingerprint(self) -> str | None:
        # Dtypes and tokens are left out, since they do not change which samples come.
        return dataset_fingerprint(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        try:
            number = as_index(index)
        except TypeError:
            msg = (
                f"a sample index must be an int, found {type(index).__name__} {index!r}. For "
                "columns and slices use the Hugging Face dataset itself."
            )
            raise OptionTypeError(msg) from None
        return self.converter.convert_batch(self._dataset[number])

    def __getitems__(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Return the samples at these indices in one read."""
        numbers = [as_index(index) for index in indices]
        if self._tables is not None and numbers:
            return self._read(numbers)
        at_once = getattr(self._dataset, "__getitems__", None)
        rows = at_once(numbers) if at_once else [self._dataset[number] for number in numbers]
        return [self.converter.convert_batch(row) for row in rows]

    def _read(self, numbers: list[int]) -> _Rows:
        table = self._tables[numbers]
        columns = {}
        for name in table.column_names:
            column: Any = _from_arrow(table.column(name), name)
            if name not in self._named:
                if isinstance(column, np.ndarray):
                    column = as_python_would(column, name)
                elif isinstance(column, Tokens):
                    column = column._replace(flat=as_python_would(column.flat, name))
            columns[name] = column
        # Convert here, so that a value that does not fit fails in the fetch, as in __getitem__.
        # Rows may lack a value, and then it is up to `collate_fn` to refuse the column.
        whole = {name: columns[name] for name in columns if not _has_gaps(columns[name])}
        return _Rows(table, columns | self._converted(whole), self.converter)

    @draws_nothing
    def collate_fn(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Make a batch of rows: numbers stacked, tokens padded, texts tokenised.

        Numbers, token columns, and lists, arrays and tensors of equal shapes become one tensor
        per column. Other columns stay lists.
        """
        if isinstance(rows, Mapping) or not isinstance(rows, Sequence):
            msg = (
                f"collate_fn takes a list of rows, found {type(rows).__name__}. Pass one row as "
                "collate_fn([row])."
            )
            raise OptionTypeError(msg)
        check_rows(rows)
        columns = dict(rows.columns) if isinstance(rows, _Rows) else columns_of(rows)
        if self._has_texts(columns):
            columns = self._tokenised(columns)
        batch = self._converted({name: self._as_column(columns[name], name) for name in columns})
        for name, column in batch.items():
            if isinstance(column, Tokens):
                batch[name] = self._padded(column, name, has_mask="attention_mask" in batch)
            elif isinstance(column, np.ndarray):
                batch[name] = as_tensor(column)
        return batch

    def _as_column(self, column: Any, name: str) -> Any:
        """Return a column as one tensor, as tokens to be padded, or as the list that it is."""
        is_of_tokens = name in FILLS and isinstance(column, list)
        tokens = tokens_of(column, name, self._named) if is_of_tokens else None
        return stacked(column, name, self._named) if tokens is None else tokens

    def _converted(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the columns with their chosen dtypes. Padding comes later."""
        flat = {
            name: column.flat if isinstance(column, Tokens) else column
            for name, column in columns.items()
        }
        converted: dict[str, Any] = self.converter.convert_batch(flat)
        return {
            name: column._replace(flat=converted[name])
            if isinstance(column, Tokens)
            else converted[name]
            for name, column in columns.items()
        }

    def _padded(self, tokens: Tokens, name: str, *, has_mask: bool) -> torch.Tensor:
        fill = FILLS[name]
        if fill is None:
            fill = padding_id(self._pad_token_id, self._tokenizer, has_mask=has_mask)
        return tokens.pad(fill, getattr(self._tokenizer, "padding_side", None) or "right", name)

    def _tokenised(self, columns: dict[str, Any]) -> dict[str, Any]:
        texts = columns.pop(self._text_column)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                msg = (
                    f"{self._text_column}: row {number} of the batch is {text!r}, expected a "
                    "string to tokenise. Filter such rows out of the dataset."
                )
                raise CollationError(msg)
        tokenizer: Any = self._tokenizer
        encoded = call_seeded(
            tokenizer,
            texts,
            padding=self._pad_token_id is None,  # otherwise `collate_fn` pads
            truncation=self._max_length is not None,
            max_length=self._max_length,
        )
        if not isinstance(encoded, Mapping):
            msg = (
                "a tokenizer must return a mapping of columns such as 'input_ids', "
                f"found {type(encoded).__name__}."
            )
            raise OptionTypeError(msg)
        return columns | dict(encoded)

    def _has_texts(self, columns: Any) -> bool:
        """Return True if there are texts to tokenise. Tokenised rows have none."""
        name = self._text_column
        if self._tokenizer is None or name in columns:
            return self._tokenizer is not None
        if name != "text" or "input_ids" not in columns:
            msg = (
                f"text_column {name!r} is not in the dataset.{did_you_mean(name, columns)} "
                f"Pass text_column= with one of {', '.join(map(repr, columns))}."
            )
            raise OptionError(msg)
        if self._max_length is not None:
            msg = (
                f"max_length={self._max_length} applies to texts, but these rows have 'input_ids' "
                "and no 'text'. Remove max_length, and truncate where the rows are tokenised, "
                "with truncation=True."
            )
            raise OptionError(msg)
        return False


class _Rows(Sequence[Any]):
    """Rows that keep their columns, so that a collator need not build the rows."""

    def __init__(
        self, table: Any, columns: dict[str, Any], converter: KeyBasedDtypeConverter
    ) -> None:
        self.columns = columns
        self._table = table
        self._converter = converter
        self._made: list[Any] | None = None

    def _rows(self) -> list[Any]:
        if self._made is None:
            self._made = list(map(self._converter.convert_batch, self._table.to_pylist()))
        return self._made

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._rows()[index]


def check_dataset(dataset: Any) -> None:
    """Raise unless this is one split of a dataset with __getitem__ and __len__."""
    if isinstance(dataset, dict):
        msg = (
            f"the dataset must be one split, found a {type(dataset).__name__} of "
            f"{', '.join(map(repr, dataset)) or 'nothing'}. Pass one of its splits, as in "
            f"dataset[{next(iter(dataset), 'train')!r}]. For a dict of columns use "
            "datasets.Dataset.from_dict()."
        )
        raise OptionTypeError(msg)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        msg = (
            "the dataset must have __getitem__ and __len__, found "
            f"{type(dataset).__name__}. {_remedy(dataset)}"
        )
        raise OptionTypeError(msg)


def _remedy(dataset: Any) -> str:
    """Return advice on making this a dataset with rows by number."""
    if type(dataset).__name__ == "IterableDataset":
        return "Load it without streaming=True."
    if hasattr(dataset, "__getitem__"):
        return "Give it __len__."
    return "Make a list of it." if hasattr(dataset, "__iter__") else "Load the data first."


def _check_tokenizer(tokenizer: Any, max_length: Any) -> None:
    if tokenizer is not None and not callable(tokenizer):
        msg = f"tokenizer must be callable, found {type(tokenizer).__name__} {tokenizer!r}."
        raise OptionTypeError(msg)
    if max_length is None:
        return
    if tokenizer is None:
        msg = f"max_length={max_length!r} requires a tokenizer, found None. Pass tokenizer= too."
        raise OptionError(msg)
    check_int("max_length", max_length, least=1)


def _is_hugging_face(dataset: Any) -> bool:
    # A program that holds such a dataset has imported its package already.
    datasets = sys.modules.get("datasets")
    return datasets is not None and type(dataset) is getattr(datasets, "Dataset", None)


def _tables_of(dataset: Any) -> Any:
    """Return the dataset in Arrow format, or None if its rows differ from its columns."""
    layout = dataset.format
    columns = layout["columns"]
    if layout["type"] is not None or layout["output_all_columns"] or not columns:
        return None
    if not all(_is_plain(dataset.features[name]) for name in columns):
        return None
    return dataset.with_format("arrow", columns=columns)


def _is_plain(feature: Any) -> bool:
    """Return True if a column's values need no decoding."""
    kind = type(feature).__name__  # the list types depend on the version
    if kind in ("List", "LargeList", "Sequence"):
        return _is_plain(feature.feature)
    if kind == "list":
        return _is_plain(feature[0])
    return kind in ("Value", "ClassLabel")


def _from_arrow(column: Any, name: str) -> NDArray[Any] | Tokens | list[Any]:
    whole = column.combine_chunks()
    found: NDArray[Any] | Tokens | list[Any] | None = _array(whole)
    if found is None and name in FILLS:
        found = _tokens(whole)
    if found is None:
        found = list(column.to_pylist())
    return found


def _has_gaps(column: Any) -> bool:
    return isinstance(column, list) and None in column


def _tokens(column: Any) -> Tokens | None:
    """Return an Arrow array's lists of numbers, of any lengths, or None for anything else."""
    if column.null_count or not _is_list(column.type):
        return None
    flat = column.flatten()
    # Empty lists have no known dtype, as when rows are collated one by one.
    numbers = _array(flat) if len(flat) else np.empty(0, dtype=np.int64)
    if numbers is None or numbers.ndim != 1:
        return None
    return Tokens(numbers, _lengths(column))


def _array(column: Any) -> NDArray[Any] | None:
    """Return an Arrow array's numbers, also from lists of equal lengths, or None."""
    import pyarrow.types as kinds  # noqa: PLC0415  installed with Hugging Face datasets

    kind = column.type
    if column.null_count or not len(column):
        return None
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind):
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array
    if not _is_list(kind):
        return None
    lengths = _lengths(column)
    flat = _array(column.flatten())
    if flat is None or (lengths != lengths[0]).any():
        return None
    return flat.reshape(len(column), lengths[0], *flat.shape[1:])


def _is_list(kind: Any) -> bool:
    import pyarrow.types as kinds  # noqa: PLC0415  likewise

    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _lengths(column: Any) -> NDArray[np.int64]:
    import pyarrow.compute  # noqa: PLC0415  likewise

    lengths: NDArray[np.int64] = pyarrow.compute.list_value_length(column).to_numpy()
    return lengths
