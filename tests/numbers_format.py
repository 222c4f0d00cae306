"""A format for tests of the porter: blocks of 8-byte numbers, decoded by adding one."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from dataporter.errors import ShardFormatError
from dataporter.shards.formats.format import Format, ReadOptions
from dataporter.shards.index import Index
from dataporter.shards.shard_file import Block, Scanned, ShardFile


class Numbers(Format):
    """`decode` writes the block's numbers plus one, and notes each decoding in a log."""

    name = "numbers"
    suffixes = (".numbers",)

    def __init__(
        self,
        log: Path | None = None,
        *,
        seconds: float = 0,
        bad: int = -1,
        error: type[Exception] = ShardFormatError,
        gate: Path | None = None,  # a file, before which no decoding ends
        passing: int = -1,  # the block that no gate holds up
    ) -> None:
        super().__init__(ReadOptions())
        self.log, self.seconds, self.bad, self.gate = log, seconds, bad, gate
        self.passing = passing
        self.error = error  # of the bad block

    def scan(self, file: ShardFile) -> Scanned:
        raise NotImplementedError

    def is_mapped(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def decode(self, file: ShardFile, block: Block, schema: Any, to: Path) -> None:  # noqa: ARG002
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{block.checksum} {os.getpid()}\n")
        is_held = self.gate is not None and block.checksum != self.passing
        while is_held and not self.gate.exists():
            time.sleep(0.002)  # for as long as the porter lives
        if block.checksum == self.bad:
            raise self.error(f"{file.name} is damaged at {block.offset}.")
        time.sleep(self.seconds)
        numbers = np.frombuffer(file.read(block.offset, block.size), np.int64)
        with to.open("wb") as decoded:
            decoded.write((numbers + 1).tobytes())

    def open(self, data: memoryview, block: Block, schema: Any) -> Any:
        raise NotImplementedError


def written(folder: Path, blocks: int, rows: int = 16) -> Index:
    """Write a file of blocks and its index. A block's checksum is its number."""
    folder.mkdir(exist_ok=True)
    path = folder / "data.numbers"
    np.arange(blocks * rows, dtype=np.int64).tofile(path)
    status = path.stat()
    each = np.ones(blocks, np.int64)
    return Index(
        root=folder,
        format="numbers",
        paths=["data.numbers"],
        sizes=np.array([status.st_size]),
        versions=[str(status.st_mtime_ns)],
        schemas=[{}],
        schema_of=np.zeros(1, np.int32),
        file=np.zeros(blocks, np.int32),
        offset=np.arange(blocks) * rows * 8,
        size=each * rows * 8,
        rows=each * rows,
        decoded=each * rows * 8,
        checksum=np.arange(blocks, dtype=np.uint64),
        fingerprint=f"{folder} {blocks} {rows}",
    )


def expected(index: Index, block: int) -> bytes:
    rows = int(index.rows[block])
    return (np.arange(block * rows, (block + 1) * rows, dtype=np.int64) + 1).tobytes()
