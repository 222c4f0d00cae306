"""Calling frames: the loader or wrapper that calls a sampler, where nothing else says it."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

_MAX_CALLERS = 12  # frames between a sampler and its loader, other samplers included


def torchs_iterator() -> weakref.ref[Any] | None:
    """Return the torch multi-worker iterator that draws from the calling sampler, or None."""
    frame = sys._getframe(1)  # noqa: SLF001  nothing else says who called __iter__
    for _ in range(_MAX_CALLERS):
        caller = frame.f_locals.get("self")
        if type(caller).__name__ == "_MultiProcessingDataLoaderIter":
            return weakref.ref(caller)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


# Wrappers of loaders that tell a sampler, in their `__iter__`, how often they were iterated: from 0
# on in every process, whatever epoch was resumed.
_COUNTING_WRAPPERS = {
    "lightning.fabric.wrappers",
    "lightning_fabric.wrappers",
    "accelerate.data_loader",
}
_WRAPPER_CALLS = 4  # frames at most from a wrapper's `__iter__` to what it calls


def is_told_by_wrapper() -> bool:
    """Return True if a wrapper that counts its own passes has called the caller."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  nothing else says who called
    for _ in range(_WRAPPER_CALLS):
        if frame is None:
            return False
        module = frame.f_globals.get("__name__")
        if module in _COUNTING_WRAPPERS and frame.f_code.co_name == "__iter__":
            return True
        frame = frame.f_back
    return False
