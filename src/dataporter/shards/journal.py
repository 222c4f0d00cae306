"""The journal of an index that is being built: files scanned so far, as records of JSON."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from dataporter.shards.index import BLOCK, IndexedFile, schema_text
from dataporter.system.files import Records

_HEAD = {"journal": 3}  # its version


class Journal(Records):
    """An open journal beside the index at `index_path`, locked where that is possible."""

    def __init__(self, index_path: Path) -> None:
        super().__init__(index_path, f"the process that builds the index at {index_path.parent}")
        self._schemas: set[str] = set()  # those it holds

    def files(self) -> dict[str, IndexedFile]:
        """Return the files that were scanned before, by path."""
        records = [json.loads(bytes(record)) for record in self.read()]
        if not records or records[0] != _HEAD:  # new, or of another version
            self.clear()
            return {}
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
        super().clear()
        self._schemas.clear()
        self._append(_HEAD)

    def keep(self, file: IndexedFile) -> None:
        """Keep a file that was scanned."""
        text = schema_text(file.schema)
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        if name not in self._schemas:
            self._append({"name": name, "schema": file.schema})
            self._schemas.add(name)
        self._append(file._asdict() | {"blocks": file.blocks.tolist(), "schema": name})

    def _append(self, record: dict[str, Any]) -> None:
        self.add(json.dumps(record, separators=(",", ":")).encode())
