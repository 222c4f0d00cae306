"""Blocks: runs of rows that are read and decoded as one.

A Parquet row group, an MDS shard, a slice of a tar or JSONL file is a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Block(NamedTuple):
    """A run of rows in a file."""

    offset: int  # of the first byte in its file
    size: int  # bytes in its file
    rows: int
    decoded: int  # bytes as workers map it: `size`, unless it has to be decoded first
    checksum: int = 0  # 64 bits of evidence of its contents


class Scanned(NamedTuple):
    """A file as its format sees it."""

    blocks: tuple[Block, ...]
    schema: dict[str, Any]  # JSON; equal in all files of a dataset, else the schema drifts
    warnings: tuple[str, ...] = ()  # about this file, each a sentence with a remedy
