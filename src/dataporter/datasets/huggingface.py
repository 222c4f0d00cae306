"""Hugging Face datasets with smaller dtypes, and tokenised if wanted.

A batch is one read: numbers, and lists of them that are equally long, go from their Arrow
columns to tensors of the wanted dtype, without becoming Python objects in between. The
result equals that of collating the rows one by one. Datasets that decode or have a format or
transform are read as rows, which they make themselves.
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
from dataporter.converters.narrowing import OnOverflow, cast
from dataporter.converters.numbers import KINDS, as_array
from dataporter.errors import CollationError, OptionError, OptionTypeError
from dataporter.fetch.rows import check_rows, columns_of
from dataporter.utils.fingerprint import dataset_fingerprint


class HFDatasetWrapper(Dataset[Any]):
    """A Hugging Face dataset, with the columns that are named converted to other dtypes.

    >>> rows = [{"text": "good", "label": 1}, {"text": "bad", "label": 0}]  # or a datasets.Dataset
    >>> dataset = HFDatasetWrapper(rows, dtype_conversions={"label": "int32"})
    >>> dataset[0]
    {'text': 'good', 'label': tensor(1, dtype=torch.int32)}
    >>> dataset.collate_fn([dataset[0], dataset[1]])
    {'text': ['good', 'bad'], 'label': tensor([1, 0], dtype=torch.int32)}

    - `dtype_conversions`: dtypes by column, as `KeyBasedDtypeConverter` takes them. Columns
      that are not named are as torch would collate them, with 64 bits a number.
    - `tokenizer`: called by `collate_fn` with a batch's texts, as tokenizers of `transformers`
      are: `tokenizer(texts, padding=True, truncation=..., max_length=...)`. The columns that it
      returns stand in place of the text. Without one, nothing is tokenised.
    - `text_column`: where the texts are.
    - `max_length`: to which the tokenizer truncates; without it, it does not.
    - `on_overflow`: what becomes of values that do not fit: "raise", "clamp" or "wrap".

    The dataset is taken with the format that it has now.
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
    ) -> None:
        check_dataset(hf_dataset)
        conversions = {} if dtype_conversions is None else dtype_conversions
        self.converter = KeyBasedDtypeConverter(conversions, on_overflow=on_overflow)
        self._named = set(conversions)
        self._dataset = hf_dataset
        self._tables: Any = None
        if _is_hugging_face(hf_dataset):
            self._dataset = copy.copy(hf_dataset)  # a format set later is not for this one
            self._tables = _tables_of(self._dataset)
        self._tokenizer = tokenizer
        self._text_column = text_column
        self._max_length = max_length
        _check_tokenizer(tokenizer, max_length)
        columns = getattr(hf_dataset, "column_names", None)
        if tokenizer is not None and columns is not None:
            self._check_text_column(columns)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def _fingerprint(self) -> str | None:
        # Dtypes and tokens are no part of it: which samples come is the dataset's alone.
        return dataset_fingerprint(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        try:
            number = as_index(index)
        except TypeError:
            msg = (
                f"samples are taken by number, found {type(index).__name__} {index!r}. "
                "For columns and slices ask the Hugging Face dataset itself."
            )
            raise OptionTypeError(msg) from None
        return self.converter.convert_batch(self._dataset[number])

    def __getitems__(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Return the samples at these indices, read at once."""
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
            column: Any = _from_arrow(table.column(name))
            if isinstance(column, np.ndarray) and name not in self._named:
                column = _as_python_would(column, name)
            columns[name] = column
        # Converted here, a value that does not fit is an error of its sample, as in __getitem__.
        return _Rows(table, self.converter.convert_batch(columns), self.converter)

    def collate_fn(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Make a batch of rows: numbers stacked, strings in a list, texts tokenised.

        Numbers, and lists, arrays and tensors of equal shapes, become one tensor a column.
        Whatever else there is stays a list.
        """
        if isinstance(rows, Mapping) or not isinstance(rows, Sequence):
            msg = f"collate_fn takes a list of rows, found {type(rows).__name__}."
            raise OptionTypeError(msg)
        check_rows(rows)
        columns = dict(rows.columns) if isinstance(rows, _Rows) else columns_of(rows)
        if self._tokenizer is not None:
            columns = self._tokenised(columns)
        stacked = {name: _stacked(column, name, self._named) for name, column in columns.items()}
        batch: dict[str, Any] = self.converter.convert_batch(stacked)
        return {
            name: _tensor(column) if isinstance(column, np.ndarray) else column
            for name, column in batch.items()
        }

    def _tokenised(self, columns: dict[str, Any]) -> dict[str, Any]:
        self._check_text_column(columns)
        texts = columns.pop(self._text_column)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                msg = (
                    f"{self._text_column}: row {number} of the batch is {text!r}, expected a "
                    "string to tokenise. Filter such rows out of the dataset."
                )
                raise CollationError(msg)
        tokenizer: Any = self._tokenizer
        encoded = tokenizer(
            texts,
            padding=True,
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

    def _check_text_column(self, columns: Any) -> None:
        name = self._text_column
        if name not in columns:
            msg = (
                f"there is no text_column {name!r} to tokenise.{did_you_mean(name, columns)} "
                f"The columns are {', '.join(map(repr, columns))}."
            )
            raise OptionError(msg)


class _Rows(Sequence[Any]):
    """Rows of which the columns are there: whoever wants those need not make the rows."""

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
    """Raise unless this is one split of a dataset, with rows by number."""
    if isinstance(dataset, dict):
        msg = (
            f"one split of a dataset is needed, found a {type(dataset).__name__} of "
            f"{', '.join(map(repr, dataset))}. Pass one of them, as in dataset['train']."
        )
        raise OptionTypeError(msg)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        msg = (
            "a dataset with rows by number is needed, which has __getitem__ and __len__, found "
            f"{type(dataset).__name__}. Load it without streaming=True."
        )
        raise OptionTypeError(msg)


def _check_tokenizer(tokenizer: Any, max_length: Any) -> None:
    if tokenizer is not None and not callable(tokenizer):
        msg = f"tokenizer must be callable, found {type(tokenizer).__name__} {tokenizer!r}."
        raise OptionTypeError(msg)
    if max_length is None:
        return
    if tokenizer is None:
        msg = f"max_length={max_length!r} is for a tokenizer, found none. Pass tokenizer= too."
        raise OptionError(msg)
    check_int("max_length", max_length, least=1)


def _is_hugging_face(dataset: Any) -> bool:
    # Whoever holds such a dataset has imported its package: no need to import it here.
    datasets = sys.modules.get("datasets")
    return datasets is not None and type(dataset) is getattr(datasets, "Dataset", None)


def _tables_of(dataset: Any) -> Any:
    """The dataset as one of Arrow tables, None where its rows are more than their columns."""
    layout = dataset.format
    columns = layout["columns"]
    if layout["type"] is not None or layout["output_all_columns"] or not columns:
        return None
    if not all(_is_plain(dataset.features[name]) for name in columns):
        return None
    return dataset.with_format("arrow", columns=columns)


def _is_plain(feature: Any) -> bool:
    """Whether a column's values are what Arrow says they are: nothing to decode."""
    kind = type(feature).__name__  # which of the lists there are depends on the version
    if kind in ("List", "LargeList", "Sequence"):
        return _is_plain(feature.feature)
    if kind == "list":
        return _is_plain(feature[0])
    return kind in ("Value", "ClassLabel")


def _from_arrow(column: Any) -> NDArray[Any] | list[Any]:
    array = _array(column.combine_chunks())
    return column.to_pylist() if array is None else array


def _array(column: Any) -> NDArray[Any] | None:
    """Numbers of an Arrow array, also in lists of equal lengths; None for anything else."""
    import pyarrow.compute  # noqa: PLC0415  there wherever a Hugging Face dataset is
    import pyarrow.types as kinds  # noqa: PLC0415  likewise

    kind = column.type
    if column.null_count or not len(column):
        return None
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind):
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array
    if not (kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)):
        return None
    lengths = pyarrow.compute.list_value_length(column).to_numpy()
    flat = _array(column.flatten())
    if flat is None or (lengths != lengths[0]).any():
        return None
    return flat.reshape(len(column), lengths[0], *flat.shape[1:])


def _stacked(column: Any, path: str, named: set[str]) -> Any:
    """One tensor of a column of numbers; anything else stays a list."""
    if not isinstance(column, list):
        return column
    first = column[0]
    if isinstance(first, Mapping):
        inner = columns_of(column, f"{path}: ")
        return {name: _stacked(part, f"{path}.{name}", named) for name, part in inner.items()}
    if not any(map(_has_numbers, column)):
        return column
    for number, part in enumerate(column):
        if part is None:
            msg = (
                f"{path}: row {number} of the batch has no value, expected numbers. Fill such "
                "rows, filter them out, or remove the column."
            )
            raise CollationError(msg)
    if all(isinstance(part, torch.Tensor) for part in column):
        _check_shapes([tuple(part.shape) for part in column], path)
        return torch.stack(column)
    try:
        array = as_array(column, path)
    except ValueError:
        _check_shapes([_shape(part) for part in column], path)
        raise
    if array is None:
        msg = (
            f"{path}: some numbers of the batch are missing or are no numbers. Fill such rows, "
            "filter them out, or remove the column."
        )
        raise CollationError(msg)
    # Python's numbers past 63 bits; without a dtype that is asked for, torch refuses them.
    is_too_wide = array.dtype == np.uint64 and not isinstance(first, np.ndarray | np.generic)
    return _as_python_would(array, path) if is_too_wide and path not in named else _tensor(array)


def _has_numbers(part: Any) -> bool:
    while isinstance(part, list) and part:
        part = part[0]
    if isinstance(part, np.ndarray | np.generic):
        return part.dtype.kind in KINDS
    return isinstance(part, bool | int | float | complex | torch.Tensor)


def _check_shapes(shapes: list[tuple[Any, ...]], path: str) -> None:
    for number, shape in enumerate(shapes):
        if shape != shapes[0] or ... in shape:
            msg = (
                f"{path}: rows of unequal shapes cannot be stacked, the first is {shapes[0]}, row "
                f"{number} of the batch {shape}. Pad them, pass tokenizer= if these are tokens, "
                "remove the column, or use a collate_fn of your own."
            )
            raise CollationError(msg)


def _shape(part: Any) -> tuple[Any, ...]:
    """How long lists in lists are; `...` where they differ."""
    if not isinstance(part, list):
        return tuple(np.shape(part))
    inner = {_shape(item) for item in part}
    return (len(part), *(inner.pop() if len(inner) == 1 else (...,) if inner else ()))


def _as_python_would(array: NDArray[Any], path: str) -> torch.Tensor:
    """A tensor as torch would make it of these numbers in Python: with 64 bits each."""
    wide = {"i": torch.int64, "u": torch.int64, "f": torch.float64}.get(array.dtype.kind)
    tensor = _tensor(array)
    return tensor if wide is None else cast(tensor, wide, path=path)


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
