"""The protocol of file formats, and those that are known, by name and by suffix.

A format finds the blocks of a file, decodes a block and opens its rows. It reads and never writes,
except the decoded copy of a block. It knows nothing of orders, indices of a dataset or caches. It
is imported when it is first used, since some formats need packages that others do not.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

from dataporter.arguments import check_flag, check_int, did_you_mean
from dataporter.errors import OptionError, ShardSchemaError
from dataporter.shards.files import list_files
from dataporter.shards.listing import Files, Listing, advice_on_single_samples, is_remote
from dataporter.shards.shard_file import Block, Scanned, ShardFile
from dataporter.shards.storage.stored import StorageOptions

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


class _Known(NamedTuple):
    place: str  # "module:Class"
    suffixes: tuple[str, ...]


FORMATS = {
    "parquet": _Known("parquet:ParquetFormat", (".parquet",)),
    "arrow": _Known("arrow:ArrowFormat", (".arrow", ".ipc", ".feather")),
    "jsonl": _Known(
        "jsonl:JsonLinesFormat",
        tuple(
            kind + compression
            for kind in (".jsonl", ".ndjson", ".json")
            for compression in ("", ".gz", ".zst")
        ),
    ),
    "tar": _Known("tar:TarFormat", (".tar",)),
    "mds": _Known(
        "mds:MdsFormat",
        (".mds", ".mds.zstd", ".mds.gz", ".mds.bz2", ".mds.br", ".mds.snappy"),
    ),
    "litdata": _Known("litdata:LitDataFormat", ()),  # an index.json tells its .bin from tokens
    "tokens": _Known("tokens:TokensFormat", (".bin", ".npy")),
}
SUFFIXES = {suffix: name for name, known in FORMATS.items() for suffix in known.suffixes}
# Formats that take an option.
_OF_TOKENS = {"dtype": ("tokens",), "window": ("tokens", "litdata")}
_COMPRESSED_TAR = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")


def find_files(
    files: Files, options: ReadOptions, name: str | None, storage: StorageOptions | None = None
) -> tuple[Listing, Format]:
    """List the files of a dataset and make their format, by `name` or else by their suffix.

    A network client lists files elsewhere: this process must not fork afterwards.
    """
    if name is not None and name not in FORMATS:
        hint = did_you_mean(str(name), FORMATS)
        msg = f"format={name!r} is unknown.{hint} Pass one of {', '.join(FORMATS)}."
        raise OptionError(msg)
    listing: Listing
    if is_remote(files):
        from dataporter.shards.storage.stored_listing import list_stored  # noqa: PLC0415  an extra

        listing = list_stored(files, SUFFIXES, storage or StorageOptions(), format=name)
    else:
        listing = list_files(files, SUFFIXES, format=name)
    return listing, make_format(listing, options)


def make_format(listing: Listing, options: ReadOptions) -> Format:
    """Make the format of listed files."""
    name = listing.format
    if name is None:
        raise _unknown_suffix(listing)
    for option, formats in _OF_TOKENS.items():
        if getattr(options, option) is not None and name not in formats:
            msg = f"{option}= is for files of tokens, found {name} files. Leave it out."
            raise OptionError(msg)
    module, _, class_name = FORMATS[name].place.partition(":")
    found = importlib.import_module(f"dataporter.shards.formats.{module}")
    made: Format = getattr(found, class_name)(options)
    return made


def _unknown_suffix(listing: Listing) -> OptionError:
    path = str(listing.root / listing.paths[0])
    if path.lower().endswith(_COMPRESSED_TAR):
        return OptionError(
            f"{path} is a compressed tar file, whose members cannot be addressed. Decompress it, "
            f"with gunzip for .gz."
        )
    return OptionError(
        f"{path} has an unknown suffix; known are {', '.join(SUFFIXES)}. Choose such files by a "
        f"glob, or pass format=, one of {', '.join(FORMATS)}.{advice_on_single_samples([path])}"
    )
