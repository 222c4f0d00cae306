"""The index: the table of all blocks of a dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.shards.shard_file import Block
from dataporter.shards.storage.stored import Url

# A block as it lies in arrays: the fields of `Block`.
BLOCK = np.dtype(
    [
        ("offset", np.int64),
        ("size", np.int64),
        ("rows", np.int64),
        ("decoded", np.int64),
        ("checksum", np.uint64),
    ]
)
# The columns of an index with an item for each block.
COLUMNS = {"file": np.dtype(np.int32)} | {name: BLOCK[name] for name in BLOCK.names or ()}
_IN_FINGERPRINT = ("file", "offset", "size", "rows", "checksum")


class IndexedFile(NamedTuple):
    """A file and its blocks."""

    path: str  # relative to the root of its index
    size: int
    version: str  # another one if the file was written again
    blocks: NDArray[Any]  # of dtype BLOCK
    schema: dict[str, Any]
    warnings: tuple[str, ...] = ()

    def has_same_rows(self, other: IndexedFile) -> bool:
        """Return True if both have the same data, whenever they were written."""
        return self.schema == other.schema and np.array_equal(self.blocks, other.blocks)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Index:
    """Files and blocks of a dataset, in the order of its rows. It can be pickled."""

    root: Path | Url  # of the paths of files
    format: str
    paths: Sequence[str]  # of each file, relative to root
    sizes: NDArray[np.int64]  # bytes of each file
    versions: Sequence[str]  # of each file: another one if it was written again
    schemas: Sequence[dict[str, Any]]  # the different schemas
    schema_of: NDArray[np.int32]  # of each file: a number in schemas
    file: NDArray[np.int32]  # of each block: a number in paths
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    rows: NDArray[np.int64]
    decoded: NDArray[np.int64]
    checksum: NDArray[np.uint64]
    fingerprint: str  # equal for equal data, in whatever folder
    file_warnings: Mapping[int, Sequence[str]] = field(default_factory=dict)
    place: Path | None = None  # the file of the index
    ends: NDArray[np.int64] = field(init=False)  # rows up to the end of each block

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", np.cumsum(self.rows, dtype=np.int64))

    def __repr__(self) -> str:
        counts = f"{len(self.paths):,} files, {len(self.file):,} blocks, {len(self):,} rows"
        return f"Index({self.format}, {counts}, in {self.root})"

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def warnings(self) -> list[str]:
        """Warnings about files, each with its path."""
        return [text for file in self.file_warnings for text in self.warnings_about(file)]

    def warnings_about(self, file: int) -> list[str]:
        """Return the warnings about a file."""
        path = self.paths[file]
        texts = self.file_warnings.get(file, ())
        return [text if path in text else f"{path}: {text}" for text in texts]

    def block(self, number: int) -> Block:
        return Block(*(int(getattr(self, name)[number]) for name in Block._fields))

    @property
    def is_local(self) -> bool:
        """True if the files lie on this machine."""
        return isinstance(self.root, Path)

    def path(self, block: int) -> Path | Url:
        """Return the file of a block."""
        return self.root / self.paths[int(self.file[block])]

    def schema(self, block: int) -> dict[str, Any]:
        """Return the schema of a block's file."""
        return self.schemas[int(self.schema_of[int(self.file[block])])]

    def locate(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each index, and the row in that block.

        All indices must be at least 0 and less than `len(index)`.
        """
        blocks = np.searchsorted(self.ends, indices, side="right").astype(np.int64, copy=False)
        return blocks, indices - self.ends[blocks] + self.rows[blocks]

    def files(self) -> list[IndexedFile]:
        """Return all files with their blocks, as `build_index` takes them."""
        blocks = np.empty(len(self.file), BLOCK)
        for name in BLOCK.names or ():
            blocks[name] = getattr(self, name)
        borders = np.searchsorted(self.file, np.arange(len(self.paths) + 1))
        return [
            IndexedFile(
                path=path,
                size=int(self.sizes[number]),
                version=self.versions[number],
                blocks=blocks[borders[number] : borders[number + 1]],
                schema=self.schemas[int(self.schema_of[number])],
                warnings=tuple(self.file_warnings.get(number, ())),
            )
            for number, path in enumerate(self.paths)
        ]


def build_index(root: Path | Url, format_name: str, files: Sequence[IndexedFile]) -> Index:
    """Build the index of files, in the order in which they are given."""
    blocks = np.concatenate([np.empty(0, BLOCK), *(file.blocks for file in files)])
    counts = [len(file.blocks) for file in files]
    columns: dict[str, Any] = {name: blocks[name].copy() for name in BLOCK.names or ()}
    columns["file"] = np.repeat(np.arange(len(files), dtype=np.int32), counts)
    texts = [schema_text(file.schema) for file in files]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    schema_of = np.array([numbers[text] for text in texts], np.int32)
    paths = [file.path for file in files]
    return Index(
        root=root,
        format=format_name,
        paths=paths,
        sizes=np.array([file.size for file in files], np.int64),
        versions=[file.version for file in files],
        schemas=[json.loads(text) for text in numbers],
        schema_of=schema_of,
        fingerprint=_fingerprint(
            [format_name, paths, list(numbers)],
            [schema_of, *(columns[name] for name in _IN_FINGERPRINT)],
        ),
        file_warnings={number: file.warnings for number, file in enumerate(files) if file.warnings},
        **columns,
    )


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON. Equal schemas have equal texts."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


def _fingerprint(texts: Sequence[object], arrays: Iterable[NDArray[Any]]) -> str:
    """Hash the data of a dataset: neither where its files lie, nor when they were written."""
    digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=16)
    for array in arrays:
        # Little-endian on every system.
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()
