"""Marks: points in the work of all devices.

Memory must not be used again while a device copies out of it, whoever started the copy, in
whatever stream. A mark is taken when the memory is let go of. When the mark has passed, all copies
out of that memory are done.

With a driver of CUDA 12.5 or newer, a mark covers all work that this process has given any device,
in every stream. With an older driver, or ROCm, it covers the default stream, the current one, and
those that were current when memory was let go of (`note_stream`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

_noted: set[torch.cuda.Stream] = set()  # never emptied: torch reuses a few dozen streams


class Mark:
    """A point in the work of all devices."""

    __slots__ = ("_events",)

    def __init__(self, events: Sequence[torch.cuda.Event]) -> None:
        self._events = events

    def passed(self) -> bool:
        """Tell whether all work up to this mark is known to be done."""
        if torch.cuda.is_current_stream_capturing():
            return False  # a query would spoil the graph
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        """Wait until all work up to this mark is done."""
        for event in self._events:
            event.synchronize()


def mark() -> Mark | None:
    """Mark the work that devices have been given so far; None while a graph is captured."""
    if torch.cuda.is_current_stream_capturing():
        return None
    driver = _driver()
    if driver is None:
        streams = {torch.cuda.default_stream(), torch.cuda.current_stream(), *tuple(_noted)}
        return Mark([_recorded(stream) for stream in streams])
    events = []
    for index in driver.devices():
        event = _recorded(torch.cuda.default_stream(index))
        if not driver.record_all(index, event):
            return None  # another thread captures a graph
        events.append(event)
    return Mark(events)


def note_stream(stream: torch.cuda.Stream | None = None) -> None:
    """Note a stream that copies, by default the current one."""
    if _driver() is None:
        _noted.add(torch.cuda.current_stream() if stream is None else stream)


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event


class _Driver:
    """Calls of CUDA's driver that torch does not offer."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}  # by device; torch's own
        library.cuCtxRecordEvent.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def devices(self) -> list[int]:
        """List the devices that this process uses."""
        return [index for index in range(torch.cuda.device_count()) if self._is_used(index)]

    def _is_used(self, index: int) -> bool:
        if index in self._contexts:
            return True
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        library = self._library
        library.cuDeviceGet(ctypes.byref(device), index)
        library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        context = ctypes.c_void_p()
        if active.value and not library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            self._contexts[index] = context  # kept until the process ends, as torch does
        return index in self._contexts

    def record_all(self, index: int, event: torch.cuda.Event) -> bool:
        """Record an event over every stream of a device. Returns False if that is refused."""
        outcome: int = self._library.cuCtxRecordEvent(self._contexts[index], event.cuda_event)
        return outcome == 0


@cache
def _driver() -> _Driver | None:
    """Load the driver; None if it cannot mark the work of all streams."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.cuCtxRecordEvent  # noqa: B018  raises AttributeError in an older one
    except (OSError, AttributeError):
        return None
    return _Driver(library)
