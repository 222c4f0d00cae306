"""Mapped files: read-only views that hold no descriptor.

Python's own `mmap` keeps a copy of the descriptor for each map. A reader has thousands of files
open, and a process may often have no more than 1,024 descriptors.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any


def _loaded() -> Any:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows
        return None
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


_libc = _loaded()
_FAILED = ctypes.c_void_p(-1).value


def map_file(descriptor: int) -> memoryview:
    """Map a whole file for reading, until the view and all that is made of it have died."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return memoryview(b"")
    if _libc is None:
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapping = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(mapping, _libc.munmap, address, size).atexit = False
    return memoryview(mapping).cast("B").toreadonly()
