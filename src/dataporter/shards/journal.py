"""The journal of an index that is being built: files scanned so far, and the lock on building.

Each line is a CRC and JSON, so a line that a kill cut short is skipped. The journal is locked while
its process lives, and removed when the index is written. On file systems without locks, several
processes may append to one journal; each of them then builds a whole index.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dataporter.shards.index import BLOCK, IndexedFile, schema_text
from dataporter.system.files import open_and_lock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HEAD = {"journal": 2}  # its version
_ABANDONED = 86_400  # seconds after which an unlocked temporary file has no writer


class Journal:
    """An open journal beside the index at `index_path`, locked where that is possible."""

    def __init__(self, index_path: Path) -> None:
        self.index_path = index_path
        self.path = _journal_path(index_path)
        index_path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor, self._is_locked = open_and_lock(
            self.path, f"the process that builds the index at {self.path.parent}"
        )
        self._schemas: set[str] = set()  # those it holds

    def read(self) -> dict[str, IndexedFile]:
        """Return the files that were scanned before, by path."""
        contents = self._contents()
        records = list(_records(contents))
        if not records or records[0] != _HEAD:  # new, or of another version
            self.clear()
            return {}
        if not contents.endswith(b"\n"):
            os.write(self._descriptor, b"\n")
        schemas: dict[str, dict[str, Any]] = {}
        files: dict[str, IndexedFile] = {}
        for record in records:
            if record == _HEAD:  # without locks, two processes may have begun it
                continue
            if "name" in record:
                schemas[record["name"]] = record["schema"]
            elif record["schema"] in schemas:
                blocks = np.array([tuple(block) for block in record["blocks"]], BLOCK)
                values = (record["path"], record["size"], record["version"])
                schema, warnings = schemas[record["schema"]], tuple(record["warnings"])
                files[record["path"]] = IndexedFile(*values, blocks, schema, warnings)
        self._schemas = set(schemas)
        return files

    def clear(self) -> None:
        """Forget all files."""
        os.ftruncate(self._descriptor, 0)
        self._schemas.clear()
        self._append(_HEAD)

    def add(self, file: IndexedFile) -> None:
        """Keep a file that was scanned."""
        text = schema_text(file.schema)
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        if name not in self._schemas:
            self._append({"name": name, "schema": file.schema})
            self._schemas.add(name)
        values = file._asdict() | {"blocks": file.blocks.tolist(), "schema": name}
        self._append(values)

    def finish(self) -> None:
        """Remove the journal, once its index is written, and what killed writers have left.

        The journal goes last: where there is none, nothing else is left either.
        """
        for path in self.path.parent.glob(f"{self.index_path.name}.*.tmp"):
            with contextlib.suppress(OSError):
                if self._is_locked or time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)

    def _contents(self) -> bytes:
        """Read by the descriptor: without locks, another process may have removed the file."""
        with open(os.dup(self._descriptor), "rb") as file:  # noqa: PTH123  a descriptor has no path
            file.seek(0)
            return file.read()

    def _append(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, separators=(",", ":")).encode()
        line = memoryview(b"%08x %s\n" % (zlib.crc32(text), text))
        while line:
            line = line[os.write(self._descriptor, line) :]


def remove_leftovers(index_path: Path) -> None:
    """Remove the journal of a process that was killed when its index was written."""
    path = _journal_path(index_path)
    if fcntl is None or not path.exists():
        return
    with contextlib.suppress(OSError):  # locked, on a read-only file system, already removed
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                for leftover in path.parent.glob(f"{index_path.name}.*.tmp"):
                    leftover.unlink()
                path.unlink()
        finally:
            os.close(descriptor)


def _journal_path(index_path: Path) -> Path:
    return index_path.with_suffix(".journal")


def _records(contents: bytes) -> Iterator[dict[str, Any]]:
    for line in contents.split(b"\n"):
        crc, _, text = line.partition(b" ")
        if crc == b"%08x" % zlib.crc32(text):
            yield json.loads(text)
