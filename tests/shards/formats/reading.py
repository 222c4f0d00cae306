"""Reads files by a format as the rooms above it do: scan, decode where needed, map, open."""

from __future__ import annotations

import json
import mmap
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataporter.shards.files import list_files
from dataporter.shards.formats.format import SUFFIXES, Format
from dataporter.shards.shard_file import Block, LocalFile, Scanned

ESTIMATING = {"parquet", "arrow"}  # formats that only estimate the size of a decoded block


def listed_files(folder: Path) -> list[str]:
    """Return the files that the index.json of a folder lists."""
    return list(list_files(folder, SUFFIXES).paths)


def change_index(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change the index.json of a folder: in place, or to what `change` returns."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    changed = change(index)
    path.write_text(json.dumps(index if changed is None else changed))


def read_all(format_: Format, path: Path) -> list[dict[str, Any]]:
    """Return all samples of a file, in order."""
    return [sample for block in read_blocks(format_, path) for sample in block]


def read_blocks(format_: Format, path: Path) -> list[list[dict[str, Any]]]:
    """Return the samples of each block, each read alone, from a format that was pickled."""
    format_ = pickle.loads(pickle.dumps(format_))
    scanned = format_.scan(LocalFile(path))
    format_.check(scanned.schema)
    with tempfile.TemporaryDirectory() as scratch:
        return [
            _read_block(format_, path, block, scanned, Path(scratch, "decoded"))
            for block in scanned.blocks
        ]


def _read_block(
    format_: Format, path: Path, block: Block, scanned: Scanned, decoded: Path
) -> list[dict[str, Any]]:
    assert block.rows > 0
    if not format_.is_mapped(scanned.schema):
        format_.decode(LocalFile(path), block, scanned.schema, decoded)
        size = decoded.stat().st_size
        assert format_.name in ESTIMATING or size == block.decoded
        path, block = decoded, block._replace(offset=0, size=size)
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(data)
    rows = format_.open(view, block, scanned.schema)
    samples = [rows([number])[0] for number in range(block.rows)]
    together = rows(range(block.rows))
    assert [list(sample) for sample in together] == [list(sample) for sample in samples]
    assert all(one is not other for one, other in zip(samples, together, strict=True))
    del rows
    view.release()
    data.close()  # a BufferError here means that a sample shares the file's memory
    return samples
