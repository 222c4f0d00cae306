"""The formats by name and by suffix."""

from __future__ import annotations

from dataporter.errors import OptionError
from dataporter.shards.files import Listing
from dataporter.shards.formats.arrow import ArrowFormat
from dataporter.shards.formats.format import Format, ReadOptions
from dataporter.shards.formats.jsonl import JsonLinesFormat
from dataporter.shards.formats.parquet import ParquetFormat
from dataporter.shards.formats.tar import TarFormat
from dataporter.shards.formats.tokens import TokensFormat

_FORMATS: dict[str, type[Format]] = {
    each.name: each
    for each in (ArrowFormat, JsonLinesFormat, ParquetFormat, TarFormat, TokensFormat)
}
SUFFIXES = {suffix: each.name for each in _FORMATS.values() for suffix in each.suffixes}


def make_format(listing: Listing, options: ReadOptions, name: str | None) -> Format:
    """Make the format of listed files, by its name if that is given."""
    name = name or listing.format
    if name not in _FORMATS:
        msg = f"the format {name!r} is unknown; known are {', '.join(_FORMATS)}."
        raise OptionError(msg)
    return _FORMATS[name](options)
