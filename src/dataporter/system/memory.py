"""Mapped files that hold no descriptor.

Python's own `mmap` keeps a copy of the descriptor for each map. A few hundred batches in shared
memory, or thousands of files of a dataset, would use up all descriptors of a process.
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


def mapped(descriptor: int, length: int, offset: int = 0, *, writes: bool) -> Any:
    """Map part of a file until the result, an array of bytes, and all views of it have died."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
    address = _libc.mmap(None, length, access, mmap.MAP_SHARED, descriptor, offset)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapping = (ctypes.c_uint8 * length).from_address(address)
    weakref.finalize(mapping, _libc.munmap, address, length).atexit = False
    return mapping


def map_file(descriptor: int) -> memoryview:
    """Map a whole file for reading."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return memoryview(b"")
    if _libc is None:
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    return memoryview(mapped(descriptor, size, writes=False)).cast("B").toreadonly()
