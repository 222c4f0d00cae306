"""Torch's loader beside ours: what one does, the other does too."""

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
)

from dataporter import ResumableDataLoader

LOADERS = [DataLoader, ResumableDataLoader]

both_loaders = pytest.mark.parametrize(
    "loader_class",
    [pytest.param(DataLoader, marks=pytest.mark.soak), ResumableDataLoader],
    ids=["torch", "ours"],
)
with_and_without_workers = pytest.mark.parametrize("num_workers", [0, 2])


def alike(dataset: Any, *arguments: Any, **options: Any) -> list[Any]:
    """One pass of our loader, after torch's has been seen to deliver the same."""
    torchs, ours = (make(dataset, *arguments, **options) for make in LOADERS)
    expected, found = list(torchs), list(ours)
    assert [shape(batch) for batch in found] == [shape(batch) for batch in expected]
    with contextlib.suppress(TypeError):  # what has no length in torch's loader has none in ours
        assert len(torchs) == len(ours)
    return found


def shape(part: Any) -> Any:
    """The types and values of a batch, through and through."""
    if isinstance(part, torch.Tensor):
        return torch.Tensor, part.dtype, part.tolist()
    if isinstance(part, np.ndarray):
        return np.ndarray, part.dtype, part.tolist()
    if isinstance(part, dict):
        return type(part), [(name, shape(value)) for name, value in part.items()]
    if isinstance(part, list | tuple):
        return type(part), [shape(value) for value in part]
    return type(part), part


def errors_of(attempt: Any) -> list[type[Exception]]:
    """What `attempt` raises with torch's loader and with ours."""
    raised = []
    for make in LOADERS:
        with pytest.raises(Exception) as caught:
            attempt(make)
        raised.append(type(caught.value))
    return raised
