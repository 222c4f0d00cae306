"""Default collation: what torch's `default_collate` returns, sooner for common samples.

Dicts, tuples and lists of tensors and numbers are taken apart here; all else, subclasses
of these and types that somebody registered with torch included, is left to torch's own
function. What somebody registers with torch for these very types is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import default_collate

from dataporter.fetch.worker_info import worker_unannounced

Empty: TypeAlias = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def anywhere(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make a tensor where torch does: the `Empty` of batches that have no memory of their own."""
    return torch.empty(shape, dtype=dtype)


def collate(samples: Sequence[Any], empty: Empty | None = None) -> Any:
    """Make one batch of samples, equal in value and type to torch's `default_collate`.

    Stacked tensors are written into what `empty(shape, dtype)` gives, if it is given.

    >>> collate([{"x": torch.zeros(2), "y": 1}, {"x": torch.ones(2), "y": 2}])["y"]
    tensor([1, 2])
    """
    first = samples[0]
    kind = type(first)
    if kind is dict:
        return {name: collate(list(map(itemgetter(name), samples)), empty) for name in first}
    if kind is torch.Tensor:
        return _stack(samples, empty)
    if kind is int:
        return _numbers(samples, _INT64)
    if kind is float:
        return _numbers(samples, _FLOAT64)
    if kind is tuple or kind is list:
        size = len(first)
        if all(len(sample) == size for sample in samples):
            return [collate(column, empty) for column in zip(*samples, strict=True)]
    elif kind is str:
        return samples
    return _left_to_torch(samples)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is plain memory, as `empty` makes it."""
    # Quantised ones have a scale too, and writing them elsewhere ends the process.
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _stack(tensors: Sequence[Any], empty: Empty | None) -> Any:
    # Only the first is looked at: a mixture is torch's to judge, as in default_collate.
    if not is_dense(tensors[0]):
        return _left_to_torch(tensors)
    # With mixed dtypes, `out` would decide on that of the batch. To look at every dtype takes
    # longer than to copy a batch of small tensors, as the engine does with what lies elsewhere.
    if (
        empty is not None
        and tensors[0].nbytes >= _WORTH_A_LOOK
        and not tensors[0].requires_grad
        and len(set(map(_dtype_of, tensors))) == 1
    ):
        batch = empty((len(tensors), *tensors[0].shape), tensors[0].dtype)
        try:
            return torch.stack(tensors, out=batch)  # type: ignore[arg-type]
        except RuntimeError:
            pass  # mixed shapes: below they give what they give without `out`
    return torch.stack(tensors)  # type: ignore[arg-type]  # it takes any sequence


_dtype_of = attrgetter("dtype")
_WORTH_A_LOOK = 512  # bytes


# There is one of each, so that they are compared as objects.
_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


def _numbers(numbers: Sequence[Any], expected: np.dtype[Any]) -> Any:
    # NumPy reads a list of numbers several times as fast, but has its own idea of a
    # mixture and of what is too large: only what comes out as expected is taken from it.
    try:
        read = np.array(numbers)
    except ValueError:
        return _left_to_torch(numbers)
    return torch.from_numpy(read) if read.dtype is expected else _left_to_torch(numbers)


def _left_to_torch(samples: Sequence[Any]) -> Any:
    with worker_unannounced():
        return default_collate(samples)  # type: ignore[arg-type]  # it takes any sequence
