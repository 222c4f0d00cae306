"""Batches of several datasets, gathered from each and joined: no sample is made by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from dataporter.fetch.collate import Empty
from dataporter.fetch.vectorised import Gather, gather_for
from dataporter.law.datasets import GathersBatches


def gather_of_parts(parts: Sequence[Any], ends: NDArray[np.int64]) -> Gather | None:
    """Return what gathers batches of datasets that are numbered one after the other.

    `ends` are the numbers that the indices of each are below. None if one of them cannot be
    gathered, or if their batches differ in more than the number of rows.
    """
    if any(isinstance(_whole(part), GathersBatches) for part in parts):
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
        by_part = np.argsort(part, kind="stable")
        stops = np.bincount(part, minlength=len(gathers)).cumsum().tolist()
        own = (indices - firsts[part])[by_part]
        batches, start = [], 0
        for gather_part, stop in zip(gathers, stops, strict=True):
            if start < stop:
                batches.append(gather_part(own[start:stop], None))
            start = stop
        back = np.empty_like(by_part)
        back[by_part] = np.arange(len(by_part))
        return _joined(batches, torch.from_numpy(back), empty)

    return gather


def _whole(part: Any) -> Any:
    """Return the dataset that a `Subset` is of."""
    return _whole(part.dataset) if isinstance(part, Subset) else part


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


def _joined(batches: list[Any], rows: torch.Tensor, empty: Empty | None) -> Any:
    """Lay batches one after the other, and return the rows of that."""
    first = batches[0]
    if isinstance(first, dict):
        return {name: _joined([each[name] for each in batches], rows, empty) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(_joined(list(each), rows, empty) for each in zip(*batches, strict=True))
    whole = torch.cat(batches)
    if empty is None:
        return whole.index_select(0, rows)
    return torch.index_select(whole, 0, rows, out=empty(tuple(whole.shape), whole.dtype))
