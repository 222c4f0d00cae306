"""A bit for each sample, and the places of those that are set: the i-th of them, and how many.

Ones are counted for every page of 16,384 bits and, within these, for every line of 256 bits. That
is about 8 MB for 10^9 samples, beside the bits themselves, which may lie in a mapped file. Of few
bits all ones are listed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE = 32  # bytes of a line
_BITS = 8 * LINE  # of a line
_LINES = 64  # of a page
_CHUNK = 1 << 16  # lines that are counted at a time
_FEW = 1 << 22  # bits of which all ones are listed, which is sooner for small batches

_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)
# The place of each byte's n-th one; shape (256, 8).
_NTH = np.zeros((256, 8), np.int64)
for _byte in range(256):
    _places = [bit for bit in range(8) if _byte >> bit & 1]
    _NTH[_byte, : len(_places)] = _places


class Bitmap:
    """Bits that do not change; bit n is bit n % 8, from the lowest, of byte n // 8.

    >>> bitmap = Bitmap(packed(np.array([False, True, False, True, True])), 5)
    >>> len(bitmap), bitmap.select(np.array([0, 2])), bitmap.rank(np.array([0, 2, 5]))
    (3, array([1, 4]), array([0, 1, 3]))
    """

    def __init__(self, bits: NDArray[np.uint8], length: int) -> None:
        if len(bits) != size_of(length):
            bits = np.append(bits, np.zeros(size_of(length) - len(bits), np.uint8))
        self.length = length
        self.bits = bits
        self._lines = bits.reshape(-1, LINE)
        counts = np.zeros(-(-len(self._lines) // _LINES) * _LINES, np.uint16)
        for first in range(0, len(self._lines), _CHUNK):
            chunk = _popcount(self._lines[first : first + _CHUNK].view(np.uint64))
            counts[first : first + len(chunk)] = chunk.sum(axis=1, dtype=np.uint16)
        in_pages = counts.reshape(-1, _LINES)
        self._pages = np.zeros(len(in_pages) + 1, np.int64)  # ones before each page
        np.cumsum(in_pages.sum(axis=1, dtype=np.int64), out=self._pages[1:])
        # Ones before each line of its page.
        self._in_page = np.cumsum(in_pages, axis=1, dtype=np.uint16) - in_pages

        self._listed: NDArray[np.uint32] | None = None
        if length <= _FEW:
            is_set = np.unpackbits(bits, count=length, bitorder="little").view(np.bool_)
            self._listed = np.flatnonzero(is_set).astype(np.uint32)

    def __len__(self) -> int:
        """Count the ones."""
        return int(self._pages[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return Bitmap, (self.bits, self.length)

    def select(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of ones by their numbers, which are in [0, len); (k,) to (k,)."""
        if self._listed is not None:
            return self._listed[numbers].astype(np.int64)
        page = np.searchsorted(self._pages, numbers, side="right") - 1
        rest = (numbers - self._pages[page]).astype(np.uint16)
        in_page = self._in_page[page]
        is_before = in_page <= rest[:, None]
        line = is_before.view(np.uint8).sum(axis=1, dtype=np.uint8).astype(np.int64) - 1
        each = np.arange(len(numbers))
        rest -= in_page[each, line]
        place: NDArray[np.int64] = page * _LINES + line
        bytes_ = self._lines[place]
        byte, rest = _nth_one(_ONES[bytes_], rest)
        place *= _BITS
        place += byte * 8 + _NTH[bytes_[each, byte], rest]
        return place

    def rank(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the ones before places, which are in [0, length]; (k,) to (k,)."""
        line, bit = np.divmod(places, _BITS)
        page, of_page = np.divmod(line, _LINES)
        found: NDArray[np.int64] = self._pages[page] + self._in_page[page, of_page]
        byte, bit = np.divmod(bit, 8)
        bytes_ = self._lines[line]
        found += (_ONES[bytes_] * (np.arange(LINE) < byte[:, None])).sum(axis=1, dtype=np.int64)
        found += _ONES[bytes_[np.arange(len(byte)), byte] & ((1 << bit) - 1)]
        return found


def packed(verdicts: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Pack a bit for each bool."""
    return np.packbits(verdicts, bitorder="little")


def size_of(length: int) -> int:
    """Return the bytes of a bitmap. They end in a bit that is not set, so every rank has a line."""
    return (length // _BITS + 1) * LINE


def _nth_one(
    ones: NDArray[np.uint8], numbers: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Return the column of each row that has a one by its number, and the number within it."""
    until = np.cumsum(ones, axis=1, dtype=np.uint16)
    column = (until > numbers[:, None]).argmax(axis=1)
    each = np.arange(len(numbers))
    return column, numbers + ones[each, column] - until[each, column]


def _popcount(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    if hasattr(np, "bitwise_count"):  # from NumPy 2 on
        return np.bitwise_count(words)  # type: ignore[no-any-return,unused-ignore]
    ones = _ONES[words.view(np.uint8)].reshape(*words.shape, 8)
    return ones.sum(axis=-1, dtype=np.uint8)  # type: ignore[no-any-return]
