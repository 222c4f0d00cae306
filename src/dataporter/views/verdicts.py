"""Verdicts on all samples of a dataset, as they are kept in files.

A file of verdicts has a head of one line, padded to whole lines of the bitmap, and the bitmap. It
is written under a temporary name and renamed: it is whole or absent. While a predicate is
evaluated, its verdicts are records in a file beside it, each with its place and a CRC. That file
is locked, and goes on where a killed process has left it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
import uuid
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.system.files import open_and_lock
from dataporter.system.memory import map_file
from dataporter.views.bitmap import LINE, Bitmap, size_of

_HEAD = b"dataporter verdicts 1 "  # the number rises if the format ever changes
_RECORD = struct.Struct("<QII")  # the first byte of the bitmap, bytes, CRC


class Place(NamedTuple):
    """The files of a predicate's verdicts: by the data and a name, and by its code."""

    folder: Path
    key: str  # hash of the data and the name
    code: str

    @property
    def path(self) -> Path:
        """The file of verdicts."""
        return self.folder / f"where-{self.key}-{self.code}.bits"

    @property
    def partial(self) -> Path:
        """The file of verdicts while they are evaluated."""
        return self.path.with_suffix(".part")

    def others(self) -> list[dict[str, Any]]:
        """Return what is known of other predicates that had this name, over the same data."""
        found = []
        for path in sorted(self.folder.glob(f"where-{self.key}-*.bits")):
            with contextlib.suppress(OSError, ValueError):
                if path != self.path and (head := _head(_mapped(path))) is not None:
                    found.append(head[0])
        return found


def digest_of(bits: NDArray[np.uint8]) -> str:
    """Hash verdicts."""
    return hashlib.blake2b(np.ascontiguousarray(bits).data, digest_size=8).hexdigest()


def read_verdicts(place: Place, length: int) -> Bitmap | None:
    """Map the verdicts in a file. Return None if they are absent, damaged or of other data."""
    try:
        data = _mapped(place.path)
        head = _head(data)
    except (OSError, ValueError):
        return None
    if head is None:
        return None
    about, start = head
    bits = np.frombuffer(data, np.uint8)[start:]
    is_whole = about.get("samples") == length and len(bits) == size_of(length)
    return Bitmap(bits, length) if is_whole and about.get("digest") == digest_of(bits) else None


def write_verdicts(place: Place, bitmap: Bitmap, name: str) -> None:
    """Write a file of verdicts."""
    about = {
        "name": name,
        "code": place.code,
        "samples": bitmap.length,
        "kept": len(bitmap),
        "digest": digest_of(bitmap.bits),
        "python": ".".join(map(str, sys.version_info[:2])),
    }
    head = _HEAD + json.dumps(about).encode()
    head += b" " * (-(len(head) + 1) % LINE) + b"\n"
    temporary = place.path.with_name(f"{place.path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(head)
            file.write(bitmap.bits.data)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the name without contents
        temporary.replace(place.path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return map_file(file.fileno())


def _head(data: memoryview) -> tuple[dict[str, Any], int] | None:
    """Return the head of a file and its bytes; None if it has none. It may raise ValueError."""
    first = bytes(data[: 1 << 16])
    end = first.find(b"\n") + 1
    if not first.startswith(_HEAD) or end % LINE:
        return None
    about = json.loads(first[len(_HEAD) : end])
    return (about, end) if isinstance(about, dict) else None


class Partial:
    """The verdicts so far, in an open file that is locked where that is possible."""

    def __init__(self, place: Place, name: str) -> None:
        place.folder.mkdir(parents=True, exist_ok=True)
        self._place = place
        awaited = f"the process that evaluates {name!r}, into {place.folder}"
        self._descriptor, self._is_locked = open_and_lock(place.partial, awaited)

    def read(self, bits: NDArray[np.uint8]) -> int:
        """Fill in the verdicts of before. Return the bytes of the bitmap that are known."""
        data = self._place.partial.read_bytes()
        known = at = 0
        while at + _RECORD.size <= len(data):
            first, size, crc = _RECORD.unpack_from(data, at)
            record = data[at + _RECORD.size : at + _RECORD.size + size]
            if len(record) != size or zlib.crc32(record) != crc or first + size > len(bits):
                break  # cut short by a kill, or damaged: from here on nothing is known
            if first == known:  # not one that two processes have written
                bits[first : first + size] = np.frombuffer(record, np.uint8)
                known += size
            at += _RECORD.size + size
        if self._is_locked:
            os.ftruncate(self._descriptor, at)
        return known

    def add(self, first: int, record: bytes) -> None:
        """Keep verdicts from a byte of the bitmap on."""
        packed = memoryview(_RECORD.pack(first, len(record), zlib.crc32(record)) + record)
        while packed:
            packed = packed[os.write(self._descriptor, packed) :]

    def finish(self) -> None:
        """Remove the file, and those that killed writers have left."""
        if self._is_locked:
            for path in self._place.folder.glob(f"{self._place.path.name}.*.tmp"):
                with contextlib.suppress(OSError):
                    path.unlink()
        with contextlib.suppress(OSError):
            self._place.partial.unlink()

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)
