"""Evidence of a block's contents: 64 bits that differ when the contents do, read at little cost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dataporter.errors import ShardChangedError
from dataporter.shards.blocks import Block
from dataporter.shards.shard_file import ShardFile

PROBE = 4096  # bytes at each end of a block


def evidence(parts: Iterable[bytes | memoryview]) -> int:
    """Hash parts of a block into an unsigned 64-bit integer.

    >>> evidence([b"ab", b"c"]) == evidence([b"abc"])
    True
    """
    gathered = Evidence()
    for part in parts:
        gathered.add(part)
    return gathered.value()


class Evidence:
    """Evidence of contents that come part by part."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8, person=b"dataporter")

    def add(self, part: bytes | memoryview) -> None:
        self._digest.update(part)

    def value(self) -> int:
        """Return an unsigned 64-bit integer."""
        return int.from_bytes(self._digest.digest(), "little")


def ends(offset: int, size: int, head: int = PROBE) -> list[tuple[int, int]]:
    """Return the ranges, each first byte and end, of the head and the tail of a run of bytes.

    >>> ends(0, 10_000), ends(0, 5)
    ([(0, 4096), (5904, 10000)], [(0, 5)])
    """
    end = offset + size
    return (
        [(offset, end)] if size <= head + PROBE else [(offset, offset + head), (end - PROBE, end)]
    )


def read_ends(
    file: ShardFile, offset: int, size: int, head: int = PROBE
) -> tuple[memoryview, memoryview]:
    """Read the head and the tail, each byte once; both are the whole run if it is short."""
    found = [file.read(begin, end - begin) for begin, end in ends(offset, size, head)]
    return found[0], found[-1]


def evidence_of_ends(head: memoryview, tail: memoryview, size: int) -> int:
    """Hash the size, the head and the tail of a run of bytes."""
    return evidence([size.to_bytes(8, "little"), head[:PROBE], tail[-PROBE:]])


def require_whole(data: memoryview, block: Block) -> None:
    """Raise unless a file still has all bytes of a block."""
    end = block.offset + block.size
    if len(data) < end:
        msg = (
            f"The file became shorter since it was indexed: it has {len(data):,} bytes, but a "
            f"block ends at {end:,}. Restore the file, or build the index again."
        )
        raise ShardChangedError(msg)
