"""Reads files through a format as a dataset does: scan, decode where needed, map, open."""

import mmap
from pathlib import Path

from dataporter.shards.formats.format import Format, ReadOptions


def read_all(kind: type[Format], path: Path, columns=None) -> list[dict]:
    """Return all samples of a file, in order."""
    return [sample for block in read_blocks(kind, path, columns) for sample in block]


def read_blocks(kind: type[Format], path: Path, columns=None) -> list[list[dict]]:
    """Return the samples of each block."""
    source = kind(ReadOptions(columns=columns))
    found = source.scan(path)
    source.check(found.schema)
    samples = []
    for block in found.blocks:
        file = path
        if not source.is_mapped(found.schema):
            file = path.with_name(path.name + ".decoded")
            source.decode(path, block, found.schema, file)
            size = file.stat().st_size
            block = block._replace(offset=0, size=size, decoded=size)
        with file.open("rb") as opened:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        rows = source.open(memoryview(data), block, found.schema)
        samples.append(rows(range(block.rows)))
    return samples
