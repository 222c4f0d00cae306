"""Page-locked copies of batches, for fast and asynchronous copies to a device.

They lie in torch's pool of page-locked memory. Memory of the pool is used again when its tensors
have died and every copy out of it is done.
"""

from __future__ import annotations

from typing import Any

import torch

from dataporter.fetch import Partial
from dataporter.fetch.containers import changed


def can_pin() -> bool:
    """Tell whether there is a device for which memory can be page-locked."""
    if not torch.accelerator.is_available():
        return False
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type != "mps"


def pinned(batch: Any) -> Any:
    """Return the batch with every dense tensor page-locked, in the same containers.

    Sparse, nested and quantised tensors stay where they are. Of an object with a `pin_memory()`
    method, that method is called, as torch does.
    """
    if type(batch) is Partial:
        return Partial(_pinned(batch.batch, {}), batch.left_out, batch.skipped)
    return _pinned(batch, {})


def _pinned(part: Any, done: dict[int, tuple[Any, Any]]) -> Any:
    if isinstance(part, torch.Tensor):
        if not _can_be_pinned(part):
            return part
        if id(part) not in done:  # a tensor that occurs twice stays one
            # torch cannot page-lock an expanded tensor, which repeats its elements in place.
            repeated = 0 in part.stride() and part.numel() > 1
            done[id(part)] = part, (part.contiguous() if repeated else part).pin_memory()
        return done[id(part)][1]
    if isinstance(part, str | bytes):
        return part
    if hasattr(part, "pin_memory"):
        return part.pin_memory()
    return changed(part, lambda inner: _pinned(inner, done))


def pinned_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make a page-locked tensor."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def _can_be_pinned(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return is_dense and tensor.is_cpu and not tensor.is_quantized
