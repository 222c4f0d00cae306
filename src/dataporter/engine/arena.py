"""The arena: anonymous shared memory that batches travel in, cut into slots.

It is one file without a name (`memfd`): a killed process leaves nothing in a file system, and one
descriptor serves any number of batches. Each slot is a range of that file, far larger than any
batch. Only pages that were written exist, and a slot is mapped only as far as it is used.

Where the system has no `memfd`, as on macOS, an unlinked temporary file stands in. File systems
limit the size of a file, so this file grows as its slots are used, and its slots are smaller.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.engine.page_locks import PageLock, take_lock
from dataporter.errors import UnsupportedSystemError
from dataporter.system.memory import libc, mapped, memory_file, temporary_file

# The address space of a memfd is cut into slots of 64 GiB; it has room for 2**20 of them.
_STRIDE = 2**36
_MAX_SLOTS = 2**20
_MEMFD_SIZE = _STRIDE * _MAX_SLOTS  # no other file is that large
# That of a temporary file is cut into slots of 1 GiB: ext4 has room for 2**14 of them.
_FILE_STRIDE = 2**30
_FIRST_MAPPING = 2**18  # bytes; doubled as a slot's batches turn out larger

# Tensors in a slot begin at multiples of this: enough for every dtype and for vector loads.
_ALIGNMENT = 64


def create_arena() -> int:
    """Make an arena and return its descriptor."""
    descriptor = memory_file()
    if descriptor is None:
        return temporary_file()
    os.truncate(descriptor, _MEMFD_SIZE)
    return descriptor


def _reserved(descriptor: int, number: int, length: int) -> int:
    """Make room for the first bytes of a slot, and return the slot's offset in the arena."""
    if os.fstat(descriptor).st_size == _MEMFD_SIZE:
        return number * _STRIDE
    offset = number * _FILE_STRIDE
    if length > _FILE_STRIDE:
        msg = (
            f"a batch is larger than {_FILE_STRIDE:,} bytes. No more can go from one process to "
            "another on a system without memfd_create. Use smaller batches, engine='threads' or "
            "num_workers=0."
        )
        raise UnsupportedSystemError(msg)
    if hasattr(os, "posix_fallocate"):
        # On a full disk, a write to the mapping would kill the process; this call raises.
        try:
            os.posix_fallocate(descriptor, offset, length)
        except OSError as error:
            msg = (
                f"{error.strerror}: {tempfile.gettempdir()} has no room for {length:,} bytes. "
                "Batches travel in a temporary file on a system without memfd_create. Set TMPDIR "
                "to a folder with more room"
            )
            raise OSError(error.errno, msg) from error
    elif os.fstat(descriptor).st_size < offset + length:
        # Not by `truncate`: another process may have made the file longer meanwhile.
        os.pwrite(descriptor, b"\0", offset + length - 1)
    return offset


class Slot:
    """One process's view of a slot, mapped as far as it has been used."""

    __slots__ = ("_descriptor", "_map", "address", "bytes", "lock", "number", "populated")

    def __init__(self, descriptor: int, number: int) -> None:
        self._descriptor = descriptor
        self.number = number
        self.bytes = memoryview(b"")  # a view, since small pieces are copied fastest through it
        self.address = 0  # of the first byte, in this process
        self._map: Any = b""
        self.populated = 0  # bytes; whole pages
        self.lock: PageLock | None = None  # of the mapping

    def reach(self, size: int) -> memoryview:
        """Map at least `size` bytes; views of an earlier mapping stay valid."""
        if size > len(self.bytes):
            length = max(_FIRST_MAPPING, 1 << (size - 1).bit_length())
            offset = _reserved(self._descriptor, self.number, length)
            self._map = mapped(self._descriptor, length, offset, writes=True)
            self.address = ctypes.addressof(self._map)
            # By way of NumPy: a view of a ctypes array cannot be assigned bytes.
            array: Any = np.frombuffer(self._map, np.uint8)
            self.bytes = memoryview(array)
            self.lock = None  # the lock of the earlier mapping ends with that mapping
            self.populated = 0
        return self.bytes

    def populate(self, size: int) -> None:
        """Map at least `size` bytes, and enter them into this process's page tables at once.

        Otherwise each page is a fault when it is first written, in every worker for every slot.
        """
        self.reach(size)
        if size > self.populated:
            # Only pages that are new: a batch of many parts reaches further with each of them.
            start, self.populated = self.populated, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            if sys.platform == "linux":  # an older kernel refuses
                libc.madvise(self.address + start, self.populated - start, _MADV_POPULATE_WRITE)

    def fresh(self, size: int) -> NDArray[np.uint8]:
        """Return an array over the first `size` bytes that lives only as long as its views.

        It lies straight over the mapping. Of an array over another array, NumPy lets views refer
        to that other one, and then this one would die before its views.
        """
        self.reach(size)
        return np.frombuffer(self._map, np.uint8, size)

    def page_lock(self, size: int) -> str | None:
        """Page-lock at least the first `size` bytes. Returns the reason of a refusal, or None.

        No device may be reading from the slot.
        """
        if self.lock is not None and size <= self.lock.size:
            return None
        self._unlock()
        # Up to the next eighth of a power of two, so that sizes that vary soon fit.
        eighth = max(1 << max((size - 1).bit_length() - 3, 0), mmap.PAGESIZE)
        enough = min(-(-size // eighth) * eighth, len(self.reach(size)))
        taken = take_lock(self._map, self.address, enough)
        if isinstance(taken, str):
            return taken
        self.lock = taken
        return None

    def _unlock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def forget(self) -> None:
        """Give the slot's memory back to the system. No device may be reading from it."""
        self._unlock()  # otherwise a device would keep the pages that are given back
        if len(self.bytes) and hasattr(mmap, "MADV_REMOVE"):
            libc.madvise(self.address, len(self.bytes), mmap.MADV_REMOVE)


_MADV_POPULATE_WRITE = 23  # of Linux 5.14; Python does not name it


class Writer:
    """Fills a slot from its start with tensors, buffers and bytes, one after another."""

    __slots__ = ("_address", "_earlier", "_memory", "_slot", "_used")

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._used = 0
        self._memory, self._address = slot.bytes, slot.address
        # Mappings from before the slot grew; tensors of this batch may lie in them.
        self._earlier: list[tuple[int, memoryview]] = []

    def reserve(self, size: int) -> int:
        """Take the next `size` bytes, and return their offset."""
        offset = self._used + -self._used % _ALIGNMENT
        self._used = end = offset + size
        if end > self._slot.populated:
            self._slot.populate(end)
            if self._slot.bytes is not self._memory:
                self._earlier.append((self._address, self._memory))
                self._memory, self._address = self._slot.bytes, self._slot.address
        return offset

    def write(self, body: Any) -> int:
        """Copy bytes, or a view of some, and return their offset."""
        offset = self.reserve(len(body))
        self._memory[offset : self._used] = body
        return offset

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Make a tensor in the slot."""
        offset = self.reserve(tensor_bytes(shape, dtype))
        return tensor_over(self._memory, offset, shape, dtype)

    def copy(self, tensor: torch.Tensor) -> int:
        """Copy the elements of a dense tensor, and return their offset."""
        size = tensor.nbytes
        offset = self.reserve(size)
        if tensor.is_contiguous():
            # Not by `copy_`, which takes a tensor over the slot: three times as long if small.
            ctypes.memmove(self._address + offset, tensor.data_ptr(), size)
        else:
            tensor_over(self._memory, offset, tuple(tensor.shape), tensor.dtype).copy_(tensor)
        return offset

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Return the offset of a tensor that `empty` made; None for any other."""
        offset = tensor.data_ptr() - self._address
        if 0 <= offset < len(self._memory):
            return offset
        for address, memory in self._earlier:
            offset = tensor.data_ptr() - address
            if 0 <= offset < len(memory):
                return offset
        return None


def tensor_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Count the bytes of a dense tensor."""
    size = dtype.itemsize
    for length in shape:
        size *= length
    return size


def tensor_over(
    memory: memoryview | NDArray[np.uint8], offset: int, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Make a tensor over some bytes of a slot. The tensor keeps `memory` alive."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    known: Any = _NUMPY.get(dtype)
    if known is not None:
        return torch.from_numpy(np.ndarray(shape, known, memory, offset))
    # As bytes first: `frombuffer` of a quantised dtype ends the process.
    raw = np.ndarray((tensor_bytes(shape, dtype),), np.uint8, memory, offset)
    return torch.from_numpy(raw).view(dtype).view(shape)


# Dtypes that NumPy has: through NumPy a tensor is made in half the time.
_NUMPY = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
