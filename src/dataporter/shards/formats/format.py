"""The protocol of file formats: blocks of a file, decoding of a block, rows of a block.

A format reads and never writes, except the decoded copy of a block. It knows nothing of orders,
indices of a dataset or caches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from dataporter.arguments import check_flag, check_int, did_you_mean
from dataporter.errors import ShardSchemaError
from dataporter.shards.blocks import Block, Scanned
from dataporter.shards.shard_file import ShardFile

Sample: TypeAlias = dict[str, Any]
# The rows of an open block: row numbers of the block to samples, each a new dict.
Rows: TypeAlias = Callable[[Sequence[int]], list[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options for reading the files of a dataset."""

    columns: tuple[str, ...] | None = None  # all of them, if None
    dtype: str | None = None  # of tokens in a raw file
    window: int | None = None  # tokens in a sample
    allow_pickle: bool = False  # unpickling runs code from the data

    def __post_init__(self) -> None:
        check_int("window", self.window, least=1, optional=True)
        check_flag("allow_pickle", self.allow_pickle)


def check_columns(columns: Iterable[str] | None, present: Iterable[str]) -> None:
    """Raise if a selected column is not among those that are present.

    >>> check_columns(["txt"], {"text": "string", "label": "int64"})
    Traceback (most recent call last):
    dataporter.errors.ShardSchemaError: No column is named 'txt'. Did you mean 'text'? The files ...
    """
    present = list(present)
    missing = [name for name in columns or () if name not in present]
    if missing:
        hint = did_you_mean(missing[0], present)
        msg = (
            f"No column is named {' or '.join(map(repr, missing))}.{hint} "
            f"The files have {', '.join(map(repr, present)) or 'no columns'}."
        )
        raise ShardSchemaError(msg)


class Format(ABC):
    """One file format, with the options of one dataset. It can be pickled."""

    name: ClassVar[str]
    fixes_schema: ClassVar[bool] = True  # True if all files must have one schema
    scan_options: ClassVar[tuple[str, ...]] = ()  # those that decide what a scan finds

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    @abstractmethod
    def scan(self, file: ShardFile) -> Scanned:
        """Find the blocks and the schema of a file. Raise if it is damaged."""

    def check(self, schema: Mapping[str, Any]) -> None:  # noqa: B027  most accept any
        """Raise if the options do not fit the schema of the files."""

    def is_mapped(self, schema: Mapping[str, Any]) -> bool:  # noqa: ARG002  most always are
        """Return True if blocks are read by mmap as they lie in their file."""
        return True

    def shared_part(self, begin: int, end: int, size: int) -> tuple[int, int] | None:  # noqa: ARG002  few have one
        """Return the range, first byte and end, that `decode` reads for every block of a file.

        It lies beside the blocks, which have bytes `begin` to `end` of the `size` bytes.
        """
        return None

    def decode(
        self,
        file: ShardFile,
        block: Block,
        schema: Mapping[str, Any],  # noqa: ARG002  of use to those that decode
        to: Path,
    ) -> None:
        """Write a block to the file `to`, as its only one, in the form that `open` reads.

        Every block elsewhere is decoded; of local files only blocks that are not mapped.
        """
        file.copy(block.offset, block.size, to)

    @abstractmethod
    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        """Open a block of a mapped file, or of a file that `decode` has written.

        `data` is the whole file. For a decoded file, `block` has the offset 0 and its size.
        """
