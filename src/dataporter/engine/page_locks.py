"""Page locks: a device copies by itself from memory that is page-locked.

A lock belongs to a mapping and ends with it, at the latest at exit while CUDA still runs. All
copies under way are waited for before that.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import torch

from dataporter.engine.cuda_events import mark

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
