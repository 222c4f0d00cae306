"""Columns of a batch as tensors: numbers stacked, tokens padded, the rest left as lists.

Token columns are recognised by the names that `transformers` tokenizers use. They are padded
to the longest row of the batch, with values that models and losses ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.converters.dtypes import dtype_name
from dataporter.converters.narrowing import cast
from dataporter.converters.numbers import KINDS, as_array
from dataporter.errors import CollationError, ConversionError, OptionError
from dataporter.fetch.ragged import IGNORED, Ragged, Side, is_sequence, padded
from dataporter.fetch.rows import columns_of

# The padding of each token column. None stands for the id of the padding token.
FILLS = {
    "input_ids": None,
    "attention_mask": 0,
    "labels": IGNORED,
    "token_type_ids": 0,
    "special_tokens_mask": 1,
}


class Tokens(NamedTuple):
    """A column of sequences: the numbers of all rows end to end, and the length of each row."""

    flat: Any  # a tensor or an array
    lengths: NDArray[np.int64]

    def pad(self, fill: int, side: Side, path: str) -> torch.Tensor:
        """Return a tensor with one row per sequence, as long as the longest and at least 1."""
        flat = self.flat if isinstance(self.flat, torch.Tensor) else as_tensor(self.flat)
        try:
            cast(torch.tensor(fill), flat.dtype)
        except ConversionError as error:
            msg = (
                f"{path}: the padding value {fill} does not fit into {dtype_name(flat.dtype)}. "
                f"Choose another dtype, such as dtype_conversions={{{path!r}: 'int32'}}."
            )
            raise ConversionError(msg) from error
        ragged = Ragged(_as_array(flat), self.lengths)
        places = ragged.places(ragged.width(None), side)
        return padded(ragged.flat, places, fill).to(flat)  # with its dtype, on its device


def tokens_of(column: list[Any], path: str, named: set[str]) -> Tokens | None:
    """Join sequences of numbers end to end. Return None if they can be stacked instead."""
    if not all(map(is_sequence, column)):
        return None
    lengths = np.array(list(map(len, column)))
    if lengths[0] and (lengths == lengths[0]).all():
        return None
    rows = [row for row in column if len(row)]  # an empty one may have any dtype
    if not rows:
        return Tokens(np.empty(0, dtype=np.int64), lengths)
    if all(isinstance(row, torch.Tensor) for row in rows):
        return Tokens(torch.cat(rows), lengths)
    is_numpys = all(isinstance(row, np.ndarray) for row in rows)
    array = np.concatenate(rows) if is_numpys else as_array(list(chain.from_iterable(rows)), path)
    if array is None or array.dtype.kind not in KINDS:
        raise _missing(path)
    return Tokens(_tensor_of(array, rows[0], path, named), lengths)


def padding_id(given: int | None, tokenizer: Any, *, has_mask: bool) -> int:
    """Return the id to pad with: the given one, else the tokenizer's.

    With an attention mask any id works, so 0 is the last resort.
    """
    known = getattr(tokenizer, "pad_token_id", None) if given is None else given
    if known is None and not has_mask:
        msg = (
            "input_ids: rows of unequal lengths need padding, but there is no padding token and no "
            "attention_mask. Pass pad_token_id=, or tokenizer= with a tokenizer that has a "
            "pad_token."
        )
        raise OptionError(msg)
    return int(known or 0)


def stacked(column: Any, path: str, named: set[str]) -> Any:
    """Stack a column of numbers into one tensor. Anything else stays a list."""
    if not isinstance(column, list):
        return column
    first = column[0]
    if isinstance(first, Mapping):
        inner = columns_of(column, f"{path}: ")
        return {name: stacked(part, f"{path}.{name}", named) for name, part in inner.items()}
    if not any(map(_has_numbers, column)):
        return column
    for number, part in enumerate(column):
        if part is None:
            msg = (
                f"{path}: row {number} of the batch is None, expected numbers. Fill such rows, "
                "filter them out, or remove the column."
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
        raise _missing(path)
    return _tensor_of(array, first, path, named)


def as_python_would(array: NDArray[Any], path: str) -> torch.Tensor:
    """Return the tensor that torch would make of these numbers in Python: 64 bits each."""
    wide = {"i": torch.int64, "u": torch.int64, "f": torch.float64}.get(array.dtype.kind)
    tensor = as_tensor(array)
    if wide is None:
        return tensor
    try:
        return cast(tensor, wide)
    except ConversionError as error:  # only uint64 can be too wide
        msg = (
            f"{path}: {array.max()} does not fit into int64, the default dtype of integers. "
            f"Choose another dtype: dtype_conversions={{{path!r}: 'uint64'}}."
        )
        raise ConversionError(msg) from error


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares an array's memory, or a copy if the array is read-only."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _tensor_of(array: NDArray[Any], first: Any, path: str, named: set[str]) -> torch.Tensor:
    # Python's integers above 63 bits. Torch refuses them unless a dtype is named.
    is_too_wide = array.dtype == np.uint64 and not isinstance(first, np.ndarray | np.generic)
    return as_python_would(array, path) if is_too_wide and path not in named else as_tensor(array)


def _as_array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    try:
        array: NDArray[Any] = tensor.numpy()
    except TypeError:  # bfloat16 and float8, which wider floats represent exactly
        array = tensor.float().numpy()
    return array


def _has_numbers(part: Any) -> bool:
    while isinstance(part, list) and part:
        part = part[0]
    if isinstance(part, np.ndarray | np.generic):
        return part.dtype.kind in KINDS
    return isinstance(part, bool | int | float | complex | torch.Tensor)


def _missing(path: str) -> CollationError:
    msg = (
        f"{path}: some values of the batch are missing or not numbers. Fill such rows, filter "
        "them out, or remove the column."
    )
    return CollationError(msg)


def _check_shapes(shapes: list[tuple[Any, ...]], path: str) -> None:
    for number, shape in enumerate(shapes):
        if shape != shapes[0] or ... in shape:
            msg = (
                f"{path}: rows of unequal shapes cannot be stacked: row 0 of the batch has "
                f"{shapes[0]}, row {number} has {shape}. Pad them in the dataset, remove the "
                "column, or use your own collate_fn. Only these columns are padded automatically: "
                f"{', '.join(FILLS)}."
            )
            raise CollationError(msg)


def _shape(part: Any) -> tuple[Any, ...]:
    """Return the shape of nested lists, with `...` where lengths differ."""
    if not isinstance(part, list):
        return tuple(np.shape(part))
    inner = {_shape(item) for item in part}
    return (len(part), *(inner.pop() if len(inner) == 1 else (...,) if inner else ()))
