"""Memory: files that are mapped without a descriptor, files without a name, and the C library.

Python's own `mmap` keeps a copy of the descriptor for each map. A few hundred batches in shared
memory, or thousands of files of a dataset, would use up all descriptors of a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import weakref
from typing import Any


def _loaded() -> Any:
    """Load the C library, for calls that Python does not offer. None on Windows."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return None
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return library


libc = _loaded()
_FAILED = ctypes.c_void_p(-1).value
_MFD_CLOEXEC = 1


def allocated(address: int) -> int:
    """Count the bytes of the allocation at an address; 0 if the system does not tell."""
    # Glibc's name, and that of macOS.
    count = getattr(libc, "malloc_usable_size", None) or getattr(libc, "malloc_size", None)
    if count is None:
        return 0
    count.restype, count.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    return int(count(address))


def mapped(descriptor: int, length: int, offset: int = 0, *, writes: bool) -> Any:
    """Map part of a file until the result, an array of bytes, and all views of it have died."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
    address = libc.mmap(None, length, access, mmap.MAP_SHARED, descriptor, offset)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapping = (ctypes.c_uint8 * length).from_address(address)
    weakref.finalize(mapping, libc.munmap, address, length).atexit = False
    return mapping


def map_file(descriptor: int) -> memoryview:
    """Map a whole file for reading."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return memoryview(b"")
    if libc is None:
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    return memoryview(mapped(descriptor, size, writes=False)).cast("B").toreadonly()


def memory_file() -> int | None:
    """Open a file without a name in memory; None where the system has no such thing."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # not in this kernel, or not allowed
            return os.memfd_create("dataporter", os.MFD_CLOEXEC)
    elif hasattr(libc, "memfd_create"):  # this Python was built where there was none
        descriptor: int = libc.memfd_create(b"dataporter", _MFD_CLOEXEC)
        if descriptor >= 0:
            return descriptor
    return None


def temporary_file() -> int:
    """Open a file without a name on a disk."""
    descriptor, path = tempfile.mkstemp(prefix="dataporter")
    os.unlink(path)  # noqa: PTH108  a descriptor is all that is kept
    return descriptor


def unnamed_file() -> int:
    """Open a file without a name, in memory if possible."""
    descriptor = memory_file()
    return temporary_file() if descriptor is None else descriptor
