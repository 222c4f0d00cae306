"""The index: the table of all blocks of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.shards.blocks import Block


@dataclass(frozen=True, kw_only=True)
class Index:
    """Files and blocks of a dataset, in the order of its rows. It can be pickled."""

    root: Path  # of the paths of files
    format: str
    paths: Sequence[str]  # of each file, relative to root
    sizes: NDArray[np.int64]  # bytes of each file
    modified: NDArray[np.int64]  # of each file, nanoseconds
    schemas: Sequence[dict[str, Any]]  # the different schemas
    schema_of: NDArray[np.int32]  # of each file: a number in schemas
    file: NDArray[np.int32]  # of each block: a number in paths
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    rows: NDArray[np.int64]
    decoded: NDArray[np.int64]
    checksum: NDArray[np.uint64]
    fingerprint: str
    warnings: Sequence[str] = ()
    ends: NDArray[np.int64] = field(init=False, repr=False)  # rows up to the end of each block

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", np.cumsum(self.rows, dtype=np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def block(self, number: int) -> Block:
        return Block(
            *(
                int(column[number])
                for column in (self.offset, self.size, self.rows, self.decoded, self.checksum)
            )
        )

    def path(self, block: int) -> Path:
        """Return the file of a block."""
        return self.root / self.paths[int(self.file[block])]

    def schema(self, block: int) -> dict[str, Any]:
        """Return the schema of a block's file."""
        return self.schemas[int(self.schema_of[int(self.file[block])])]
