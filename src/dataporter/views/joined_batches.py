"""Batches of several datasets, gathered from each and joined: no sample is made by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.fetch.collate import Empty
from dataporter.fetch.vectorised import Gather, GathersBatches, gather_for


def gather_of_parts(parts: Sequence[Any], ends: NDArray[np.int64]) -> Gather | None:
    """Return what gathers batches of datasets that are numbered one after the other.

    `ends` are the numbers that the indices of each are below. None if one of them cannot be
    gathered, or if their batches differ in more than the number of rows.
    """
    if any(isinstance(part, GathersBatches) for part in parts):
        return None  # what they gather cannot be told before something is read
    found = [gather_for(part) for part in parts]
    gathers = [each for each in found if each is not None]
    if len(gathers) < len(parts):
        return None
    none = np.empty(0, dtype=np.int64)
    kinds = [_kind(gather(none, None)) for gather in gathers]
    if kinds[0] is None or any(kind != kinds[0] for kind in kinds):
        return None
    firsts = np.concatenate([[0], ends[:-1]])

    def gather(indices: NDArray[np.int64], empty: Empty | None) -> Any:
        part = np.searchsorted(ends, indices, side="right")
        places, batches = [], []
        for number in np.flatnonzero(np.bincount(part, minlength=len(gathers))).tolist():
            there = np.flatnonzero(part == number)
            places.append(torch.from_numpy(there))
            batches.append(gathers[number](indices[there] - firsts[number], None))
        return _joined(batches, places, len(indices), empty)

    return gather


def _kind(batch: Any) -> Any:
    """Return what batches must have in common to be joined; None if they cannot be."""
    if type(batch) is torch.Tensor:
        return None if batch.requires_grad else (batch.dtype, batch.shape[1:])
    if type(batch) in (list, tuple):
        kinds = [_kind(each) for each in batch]
        return None if None in kinds else (type(batch), *kinds)
    if type(batch) is dict:
        named = {name: _kind(each) for name, each in batch.items()}
        return None if None in named.values() else tuple(named.items())
    return None


def _joined(batches: list[Any], places: list[torch.Tensor], count: int, empty: Empty | None) -> Any:
    """Put the rows of batches to their places in one batch."""
    first = batches[0]
    if isinstance(first, dict):
        return {
            name: _joined([each[name] for each in batches], places, count, empty) for name in first
        }
    if isinstance(first, list | tuple):
        return type(first)(
            _joined(list(each), places, count, empty) for each in zip(*batches, strict=True)
        )
    shape = (count, *first.shape[1:])
    joined = torch.empty(shape, dtype=first.dtype) if empty is None else empty(shape, first.dtype)
    for batch, there in zip(batches, places, strict=True):
        joined[there] = batch
    return joined
