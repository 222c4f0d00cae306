"""The formats that are known, by name and by suffix.

A format is imported when it is first used, since some need packages that others do not.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

from dataporter.arguments import did_you_mean
from dataporter.errors import OptionError
from dataporter.shards.files import list_files
from dataporter.shards.formats.format import Format, ReadOptions
from dataporter.shards.listing import Files, Listing, advice_on_single_samples, is_remote
from dataporter.shards.storage.options import StorageOptions


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
