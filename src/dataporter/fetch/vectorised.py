"""Gathering: a whole batch of a plain dataset by one indexing, without user code.

For tensors, arrays, `TensorDataset`, Hugging Face datasets and `Subset`s of these, the
collated batch is the data at an array of indices. Other datasets may say how their batches are
gathered (`GathersBatches`). The result equals collating the samples one by one. Nothing is
cached: what the dataset holds now is what is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset

from dataporter.fetch.arrow import arrow_gather
from dataporter.fetch.collate import Empty, anywhere, is_dense
from dataporter.law.datasets import Gather, GathersBatches

# Arrays of these kinds become the tensor that collating their rows would give.
_KINDS = "biufc"
# What torch can gather in every version. Others are gathered as these, by their size in bytes.
_SELECTABLE = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
}
_STAND_INS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Elements below which torch copies in one thread. With several, kilobytes take a millisecond on a
# busy machine.
_OF_ONE_THREAD = 1 << 15
_dtype_of = attrgetter("dtype")


def gather_for(dataset: Any) -> Gather | None:
    """Return what gathers batches of this dataset, None where it cannot be done.

    >>> gather_for(torch.arange(5) * 10)(np.array([4, 0]), None)
    tensor([40,  0])
    >>> gather_for([1, 2, 3]) is None
    True
    """
    if type(dataset) is torch.Tensor:
        return _tensor_gather(dataset)
    if type(dataset) in (np.ndarray, np.memmap):
        return _array_gather(dataset)
    if isinstance(dataset, TensorDataset) and _is_inherited(dataset, TensorDataset):
        return _tensor_dataset_gather(dataset)
    if isinstance(dataset, Subset) and _is_inherited(dataset, Subset):
        return _subset_gather(dataset)
    if isinstance(dataset, GathersBatches):
        return dataset.batch_gather()
    return arrow_gather(dataset)


def _is_inherited(dataset: object, base: type) -> bool:
    """Return True if a dataset returns its samples exactly as `base` does."""
    return all(
        getattr(type(dataset), name, None) is getattr(base, name, None)
        for name in ("__getitem__", "__getitems__")
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    if not (type(tensor) is torch.Tensor and is_dense(tensor) and tensor.device.type == "cpu"):
        return False
    if tensor.dtype in _SELECTABLE:
        return True
    is_bytes_only = not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    return is_bytes_only and tensor.dtype.itemsize in _STAND_INS


def _rows(tensor: torch.Tensor, rows: torch.Tensor, empty: Empty | None) -> torch.Tensor:
    dtype = tensor.dtype
    if dtype not in _SELECTABLE:
        return _rows(tensor.view(_STAND_INS[dtype.itemsize]), rows, empty).view(dtype)
    if empty is None or tensor.requires_grad:
        return tensor.index_select(0, rows)
    batch = empty((len(rows), *tensor.shape[1:]), dtype)
    return torch.index_select(tensor, 0, rows, out=batch)


def joined_rows(
    tensors: Sequence[torch.Tensor], places: NDArray[np.int64], empty: Empty | None
) -> torch.Tensor | None:
    """Join tensors to one, in which their rows have these places; None if they are not alike."""
    first, number = tensors[0], len(places)
    dtype = first.dtype
    if not first.dim() or not _is_plain(first) or len(set(map(_dtype_of, tensors))) > 1:
        return None
    if dtype not in _SELECTABLE or dtype is torch.bfloat16:  # nor does NumPy know it
        as_ints = [each.view(_STAND_INS[dtype.itemsize]) for each in tensors]
        joined = joined_rows(as_ints, places, empty)
        return None if joined is None else joined.view(dtype)
    if first.numel() * number < _OF_ONE_THREAD * len(first):
        try:
            whole = torch.cat(tensors)  # type: ignore[arg-type]  # any sequence
        except RuntimeError:  # other shapes
            return None
        if len(whole) != number or whole.requires_grad:
            return None
        order = np.empty_like(places)
        order[places] = np.arange(number)
        return _rows(whole, torch.from_numpy(order), empty)
    row, stops = first.shape[1:], np.cumsum([*map(len, tensors)]).tolist()
    if stops[-1] != number or any(each.shape[1:] != row or each.requires_grad for each in tensors):
        return None
    batch = (empty or anywhere)((number, *row), dtype)
    rows = batch.numpy()
    for each, stop in zip(tensors, stops, strict=True):
        rows[places[stop - len(each) : stop]] = each.resolve_conj().resolve_neg().numpy()
    return batch


def _tensor_gather(tensor: torch.Tensor) -> Gather | None:
    if not _is_plain(tensor) or tensor.dim() == 0:
        return None
    return lambda indices, empty: _rows(tensor, torch.from_numpy(indices), empty)


def _array_gather(array: NDArray[Any]) -> Gather | None:
    if array.dtype.kind not in _KINDS or not array.dtype.isnative or array.ndim == 0:
        return None

    def gather(indices: NDArray[np.int64], empty: Empty | None) -> torch.Tensor:
        if empty is None or array.dtype.kind == "u":
            return torch.from_numpy(np.asarray(array.take(indices, axis=0)))
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        batch = empty((len(indices), *array.shape[1:]), dtype)
        array.take(indices, axis=0, out=batch.numpy())
        return batch

    return gather


def _tensor_dataset_gather(dataset: TensorDataset) -> Gather | None:
    def gather(indices: NDArray[np.int64], empty: Empty | None) -> list[torch.Tensor]:
        rows = torch.from_numpy(indices)
        return [_rows(tensor, rows, empty) for tensor in dataset.tensors]

    if not all(map(_is_plain, dataset.tensors)):
        return None
    return gather


def _subset_gather(subset: Subset[Any]) -> Gather | None:
    inner = gather_for(subset.dataset)
    if inner is None:
        return None

    def gather(indices: NDArray[np.int64], empty: Empty | None) -> Any:
        chosen = subset.indices
        if isinstance(chosen, torch.Tensor):
            chosen = chosen.numpy()
        if isinstance(chosen, np.ndarray):
            rows = chosen[indices].astype(np.int64, copy=False)
        else:
            rows = np.array([chosen[index] for index in indices.tolist()], dtype=np.int64)
        return inner(_from_the_front(rows, len(subset.dataset)), empty)  # type: ignore[arg-type]  # it has a length

    return gather


def _from_the_front(rows: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Count from the front what a list would count from the back."""
    if rows.size == 0 or rows.min() >= 0:
        return rows
    if rows.min() < -length:
        msg = f"index {rows.min()} is out of range for {length} samples"
        raise IndexError(msg)
    return np.where(rows < 0, rows + length, rows)
