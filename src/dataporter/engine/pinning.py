"""Page-locked copies of batches, for fast and asynchronous copies to a device.

They lie in torch's pool of such memory, which is used again once it was let go of and every
copy out of it is done.
"""

from __future__ import annotations

from typing import Any

import torch

from dataporter.containers import changed


def can_pin() -> bool:
    """Whether there is a device that memory can be page-locked for."""
    if not torch.accelerator.is_available():
        return False
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type != "mps"


def pinned(batch: Any) -> Any:
    """Return the batch with every dense tensor page-locked, its containers kept as they are.

    Sparse, nested and quantised tensors stay where they are. An object with a `pin_memory()`
    method of its own is asked for it, as torch does.
    """
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory() if _can_be_pinned(batch) else batch
    if isinstance(batch, str | bytes):
        return batch
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    return changed(batch, pinned)


def pinned_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make a page-locked tensor."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def _can_be_pinned(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return is_dense and tensor.is_cpu and not tensor.is_quantized
