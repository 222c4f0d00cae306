"""Page locks: memory that a device may copy from by itself, where it lies.

A lock is of a mapping and ends with it: when the mapping dies, at the latest at exit while
CUDA still runs. Before that, all copies under way are waited for.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import torch

from dataporter.engine.marks import mark

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device


class PageLock:
    """A page-locked range, of `size` bytes from the start of a mapping."""

    __slots__ = ("_address", "_ending", "size")

    def __init__(self, mapping: Any, address: int, size: int) -> None:
        self._address = address
        self.size = size
        # Called before the mapping's own, since the last that is registered is the first.
        self._ending = weakref.finalize(mapping, _end, os.getpid(), address)

    def release(self) -> None:
        """Unlock the range, from which no device may be reading."""
        if self._ending.detach() is not None:
            torch.cuda.cudart().cudaHostUnregister(self._address)


def take_lock(mapping: Any, address: int, size: int) -> PageLock | str:
    """Page-lock the first bytes of a mapping, in this process; the reason if that is refused."""
    runtime = torch.cuda.cudart()
    outcome = runtime.cudaHostRegister(address, size, _PORTABLE)
    if int(outcome) == 0:
        return PageLock(mapping, address, size)
    _forget_last_error()
    return str(runtime.cudaGetErrorString(outcome))


def _forget_last_error() -> None:
    """CUDA keeps the error of a call until somebody asks, and torch does after the next launch."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _end(owner: int, address: int) -> None:
    """Unlock what is about to be unmapped, once nothing is being copied out of it."""
    if os.getpid() != owner:
        return  # a forked child inherits the memory, not the lock
    with contextlib.suppress(RuntimeError):  # CUDA has failed, and copies nothing any more
        under_way = mark()
        if under_way is None:
            return  # nothing can be waited for now; the lock stays to the end of the process
        under_way.wait()
        torch.cuda.cudart().cudaHostUnregister(address)
