"""The index of a LitData folder: its chunks, and how their rows are stored."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from dataporter.errors import OptionError
from dataporter.shards.formats import litdata_packing as packing
from dataporter.shards.formats.index_json import (
    ListedFolder,
    damaged_index,
    parse_index,
)
from dataporter.shards.formats.litdata_values import parse_tree


class Chunk(NamedTuple):
    """A chunk, as the index lists it."""

    rows: int
    size: int  # of the file; of the plain chunk if the whole file is compressed
    tokens: int | None


class Layout(NamedTuple):
    """How the rows of all chunks are stored."""

    leaves: list[str]  # the format of each
    tree: str  # that the leaves form
    packing: str | None  # one of packing.LEVELS
    tokens: bool  # whether rows are tokens end to end


class LitDataIndex(NamedTuple):
    """The index of a folder."""

    chunks: dict[str, Chunk]
    layout: Layout


@functools.lru_cache(maxsize=16)
def litdata_index(folder: ListedFolder) -> LitDataIndex:
    """Read the index of a folder, or say why its chunks cannot be read."""
    index = parse_index(folder)
    chunks, config = index.get("chunks"), index.get("config")
    if not isinstance(chunks, list) or not isinstance(config, dict):
        raise damaged_index(folder, "has no chunks and config", "the index of a LitData folder")
    _refuse(folder, config)
    try:
        listed = {
            chunk["filename"]: Chunk(
                int(chunk["chunk_size"]), int(chunk["chunk_bytes"]), chunk.get("dim")
            )
            for chunk in chunks
        }
        return LitDataIndex(listed, _layout(config))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        found = f"is damaged ({type(error).__name__}: {error})"
        raise damaged_index(folder, found, "the index of a LitData folder") from error


def _layout(config: Mapping[str, Any]) -> Layout:
    leaves, tree = config["data_format"], config["data_spec"]
    if parse_tree(tree).leaves != len(leaves):
        msg = f"data_spec does not have the {len(leaves)} leaves of data_format"
        raise ValueError(msg)
    level = (config.get("compression_level") or "chunk") if config.get("compression") else None
    if level is not None and level not in packing.LEVELS:
        msg = f"compression_level {level!r} is unknown"
        raise ValueError(msg)
    flat = len(leaves) == 1 and leaves[0].startswith("no_header_")
    loader = config.get("item_loader")
    # Indices without a loader come from versions that knew no other for a single flat tensor.
    tokens = loader == "TokensLoader" or (loader is None and flat)
    if tokens and not flat:
        msg = f"TokensLoader needs one flat tensor or array, not {leaves}"
        raise ValueError(msg)
    return Layout(leaves, tree, level, tokens)


def _refuse(folder: ListedFolder, config: Mapping[str, Any]) -> None:
    """Raise if the chunks of a folder cannot be read."""
    loader = config.get("item_loader")
    compression = str(config.get("compression") or "zstd")
    msg = ""
    if loader == "ParquetLoader":
        msg = "lists Parquet files. Read them with format='parquet'."
    elif loader not in {None, "PyTreeLoader", "TokensLoader"}:
        msg = f"needs LitData's {loader}, which is unknown. Write the data without item_loader."
    elif config.get("encryption"):
        msg = "lists encrypted chunks, which cannot be read. Write the data without encryption."
    elif compression.split(":", maxsplit=1)[0] != "zstd":
        msg = f"lists chunks compressed with {compression!r}. Write the data with 'zstd'."
    if msg:
        msg = f"{folder.index} {msg}"
        raise OptionError(msg)
