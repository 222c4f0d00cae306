"""The index as a file: Arrow IPC with a row a block, mapped when it is read.

Files, their root, schemas and the fingerprint are JSON in the metadata of its schema, with a seal
over everything, so that a damaged file is known as one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataporter.shards.index import COLUMNS, Index
from dataporter.shards.storage.stored import Url, is_url
from dataporter.system.files import written_whole

VERSION = 3

_ABOUT = b"dataporter.index"  # keys of the metadata
_SEAL = b"dataporter.seal"


def read_index(path: Path, root: Path | Url | None = None) -> Index | None:
    """Map the index in a file. Return None if it is absent, damaged or of another version.

    `root` is where the files lie now; by default, where they lay when they were indexed.
    """
    # Windows cannot replace a file that is mapped.
    open_file = pa.memory_map if os.name == "posix" else pa.OSFile
    try:
        with open_file(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        columns = {name: _to_numpy(batch.column(name), COLUMNS[name]) for name in COLUMNS}
    except (OSError, pa.ArrowException, MemoryError, LookupError, ValueError):
        return None  # a flipped bit in Arrow's own metadata may raise any of them
    metadata = batch.schema.metadata or {}
    about = metadata.get(_ABOUT, b"")
    if metadata.get(_SEAL) != _seal(about, columns):
        return None
    values = json.loads(about)
    if values["version"] != VERSION:
        return None
    return Index(
        root=_root(values["root"]) if root is None else root,
        format=values["format"],
        paths=values["paths"],
        sizes=np.array(values["sizes"], np.int64),
        versions=values["versions"],
        schemas=values["schemas"],
        schema_of=np.array(values["schema_of"], np.int32),
        file_warnings={int(file): texts for file, texts in values["warnings"].items()},
        fingerprint=values["fingerprint"],
        place=path,
        **columns,
    )


def write_index(index: Index, path: Path) -> None:
    """Replace the file at `path` by this index."""
    about = json.dumps(
        {
            "version": VERSION,
            "fingerprint": index.fingerprint,
            "root": str(index.root),
            "format": index.format,
            "paths": list(index.paths),
            "sizes": index.sizes.tolist(),
            "versions": list(index.versions),
            "schemas": list(index.schemas),
            "schema_of": index.schema_of.tolist(),
            "warnings": {file: list(texts) for file, texts in index.file_warnings.items()},
        },
        separators=(",", ":"),
    ).encode()
    columns = {name: getattr(index, name) for name in COLUMNS}
    metadata = {_ABOUT: about, _SEAL: _seal(about, columns)}
    arrays = [_to_arrow(column) for column in columns.values()]
    batch = pa.record_batch(arrays, list(columns)).replace_schema_metadata(metadata)
    with (
        written_whole(path) as file,
        pa.ipc.new_file(file, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def _root(kept: str) -> Path | Url:
    return Url.of(kept) if is_url(kept) else Path(kept)


# pyarrow's own conversions import pandas, where it is installed: 0.3 s and 60 MB.


def _to_numpy(column: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    if column.type != pa.from_numpy_dtype(dtype) or column.offset:
        msg = f"a column has type {column.type}, expected {dtype}"
        raise ValueError(msg)
    return np.frombuffer(column.buffers()[1] or b"", dtype, len(column))


def _to_arrow(column: NDArray[Any]) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(column))
    return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), len(column), [None, buffer])


def _seal(about: bytes, columns: Mapping[str, NDArray[Any]]) -> bytes:
    digest = hashlib.blake2b(about, digest_size=16)
    for name in sorted(columns):
        digest.update(f"{name} {columns[name].dtype.str}".encode())
        digest.update(np.ascontiguousarray(columns[name]).view(np.uint8).data)
    return digest.hexdigest().encode()
