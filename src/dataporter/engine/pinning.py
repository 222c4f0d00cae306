"""Page-locked copies of batches, for fast and asynchronous copies to a device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch


def pinned(batch: Any) -> Any:
    """Return the batch with every tensor page-locked, its containers kept as they are.

    An object with a `pin_memory()` method of its own is asked for it, as torch does.
    """
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory()
    if isinstance(batch, str | bytes):
        return batch
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        values = {name: pinned(value) for name, value in batch.items()}
        if isinstance(batch, MutableMapping):
            clone = copy.copy(batch)
            clone.update(values)
            return clone
        return values
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(pinned, batch))
    if type(batch) in (tuple, list):
        return type(batch)(map(pinned, batch))
    return batch
