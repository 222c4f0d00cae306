"""A format as small as can be: a row a line, a block for every `window` lines."""

import time
import zlib
from pathlib import Path

from dataporter.errors import ShardFormatError
from dataporter.shards.formats.format import Format, ReadOptions
from dataporter.shards.shard_file import Block, Scanned, ShardFile

SUFFIXES = {".lines": "lines", ".other": "other"}


class LinesFormat(Format):
    """The first line of a file names its columns: `#name:type name:type`."""

    name = "lines"
    scan_options = ("window",)

    def __init__(self, options=None, *, seconds=0.0, log=None):
        super().__init__(options or ReadOptions())
        self.seconds = seconds  # that a scan takes
        self.log = log  # a file that gets a line for each scan

    def scan(self, file: ShardFile) -> Scanned:
        time.sleep(self.seconds)
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{Path(file.name).name}\n")
        head, *lines = bytes(file.read(0, file.size)).splitlines(keepends=True) or [b""]
        if not head.startswith(b"#"):
            raise ShardFormatError(f"{file.name} is damaged: it does not begin with '#'.")
        columns = dict(column.split(":") for column in head[1:].decode().split())
        offset, blocks, step = len(head), [], self.options.window or 2
        for start in range(0, len(lines), step):
            data = b"".join(lines[start : start + step])
            count = len(lines[start : start + step])
            blocks.append(Block(offset, len(data), count, 2 * len(data), zlib.crc32(data) << 32))
            offset += len(data)
        warnings = ("It is empty. Leave it out.",) if not lines else ()
        return Scanned(tuple(blocks), {"columns": columns}, warnings)

    def open(self, data, block, schema):
        raise NotImplementedError


def write_lines(path: Path, rows, columns="text:string"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([f"#{columns}", *map(str, rows), ""]))
