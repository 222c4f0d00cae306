"""Page-locked memory, from which a device copies by itself: mappings locked in place, and copies.

A lock belongs to a mapping and ends with it, at the latest at exit while CUDA still runs. All
copies under way are waited for before that.

Page-locked copies of batches lie in torch's pool of page-locked memory. Memory of the pool is used
again when its tensors have died and every copy out of it is done.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import torch

from dataporter.engine.cuda_events import mark
from dataporter.fetch import Partial
from dataporter.fetch.containers import changed

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device


class PageLock:
    """A page lock on the first `size` bytes of a mapping."""

    __slots__ = ("_address", "_ending", "size")

    def __init__(self, mapping: Any, address: int, size: int) -> None:
        self._address = address
        self.size = size
        # Runs before the finaliser that unmaps: the last registered is called first.
        self._ending = weakref.finalize(mapping, _end, os.getpid(), address)

    def release(self) -> None:
        """Unlock the range. No device may be reading from it."""
        if self._ending.detach() is not None:
            torch.cuda.cudart().cudaHostUnregister(self._address)


def take_lock(mapping: Any, address: int, size: int) -> PageLock | str:
    """Page-lock the first bytes of a mapping. Returns the lock, or the reason of a refusal."""
    runtime = torch.cuda.cudart()
    outcome = runtime.cudaHostRegister(address, size, _PORTABLE)
    if int(outcome) == 0:
        return PageLock(mapping, address, size)
    _forget_last_error()
    return str(runtime.cudaGetErrorString(outcome))


def _forget_last_error() -> None:
    """Clear CUDA's last error; otherwise torch would raise it after the next launch."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _end(owner: int, address: int) -> None:
    """Unlock memory that is about to be unmapped, after all copies out of it."""
    if os.getpid() != owner:
        return  # a forked child inherits the memory, not the lock
    with contextlib.suppress(RuntimeError):  # CUDA has failed, so there are no copies
        under_way = mark()
        if under_way is None:
            return  # waiting is impossible now; the lock stays until the process ends
        under_way.wait()
        torch.cuda.cudart().cudaHostUnregister(address)


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
