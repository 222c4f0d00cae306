"""The figures of an index: what a dataset in files consists of, and what is wrong with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ShardSchemaError
from dataporter.layout import Row, counted
from dataporter.shards.building import Opened
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index
from dataporter.shards.schemas import changes_in_words, check_schemas, columns_of, drift_in_words
from dataporter.tools.report import Headline, Part, Rows, Words
from dataporter.tools.units import size
from dataporter.views.counted import places_of
from dataporter.views.packing import count_of
from dataporter.views.tokens import TokenIds

_SHOWN = 5  # warnings on a terminal
_GIANT = 256 << 20  # decoded bytes of a block, which several of are in memory at once
_TINY = 256 << 10  # decoded bytes of a block that costs more to find than to read
_MANY = 1_000  # tiny blocks that are worth a warning


@dataclass(frozen=True, slots=True)
class Spread:
    """The smallest, the middle and the largest of some numbers."""

    least: int
    median: int
    most: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """The token ids in a column."""

    column: str
    tokens: int
    each: Spread | None  # None: there is no row


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFigures:
    """The figures of one index."""

    root: str
    format: str
    files: int
    blocks: int
    rows: int
    stored_bytes: int
    decoded_bytes: int
    rows_per_block: Spread | None  # None: there is no block
    bytes_per_block: Spread | None  # decoded
    schema: dict[str, Any]  # of the first file
    fingerprint: str
    index: str  # its file
    warnings: tuple[str, ...]
    problem: str | None  # the reason why the selected columns cannot be read
    lengths: Lengths | None = None  # if they were asked for

    def as_dict(self) -> dict[str, Any]:
        """All of it as builtins, for JSON."""
        return asdict(self)

    def parts(self) -> list[Part]:
        """Return what the command shows."""
        warnings = [f"Warning: {text}" for text in self.warnings[:_SHOWN]]
        if (more := len(self.warnings) - _SHOWN) > 0:
            warnings.append(f"{counted(more, 'more warning')}: --json shows all of them.")
        parts: list[Part] = [
            Words([self.root], has_paths=True),
            Rows(self._rows()),
            Words([f"Index: {self.index}"], has_paths=True),
            *(Words([text], "warning", has_paths=True) for text in warnings),
        ]
        if self.problem is not None:
            parts.append(Headline(f"Not readable: {self.problem}"))
        return parts

    def _rows(self) -> list[Row]:
        bytes_ = size(self.stored_bytes)
        if self.decoded_bytes != self.stored_bytes:
            bytes_ += f" stored, {size(self.decoded_bytes)} decoded"
        rows = [
            ("files", f"{self.files:,} of format {self.format}"),
            ("bytes", bytes_),
            ("rows", f"{self.rows:,}"),
            ("blocks", _blocks(self)),
            ("tokens", _tokens(self.lengths)),
            ("schema", ", ".join(f"{name}: {type_}" for name, type_ in _columns(self.schema))),
            ("fingerprint", self.fingerprint),
        ]
        return [(heading, words) for heading, words in rows if words]


def figures_of(opened: Opened, format: Format) -> IndexFigures:  # noqa: A002  the word of that room
    """Return the figures of an index that was opened for a format."""
    index, old = opened.index, opened.old
    problem = _problem(index, format)
    warnings = [
        None if old is None else changes_in_words(old, index),
        None if problem is not None else drift_in_words(index, format),
        *index.warnings,
        _giant(index),
        _tiny(index),
    ]
    return IndexFigures(
        root=str(index.root),
        format=index.format,
        files=len(index.paths),
        blocks=len(index.file),
        rows=len(index),
        stored_bytes=int(index.size.sum()),
        decoded_bytes=int(index.decoded.sum()),
        rows_per_block=_spread(index.rows),
        bytes_per_block=_spread(index.decoded),
        schema=dict(index.schemas[int(index.schema_of[0])]) if index.paths else {},
        fingerprint=index.fingerprint,
        index=str(index.place),
        warnings=tuple(filter(None, warnings)),
        problem=problem,
    )


def lengths_of(data: Any, column: str) -> Lengths:
    """Count the tokens of a dataset in files, unless they are counted already."""
    found = count_of(data, TokenIds(column)).open(places_of(data, None))
    return Lengths(column, int(found.sum(dtype=np.int64)), _spread(found))


def _tokens(lengths: Lengths | None) -> str:
    if lengths is None:
        return ""
    total = f"{lengths.tokens:,} in {lengths.column!r}"
    if lengths.each is None:
        return total
    return f"{total}, of each row {lengths.each.median:,} (median), at most {lengths.each.most:,}"


def _problem(index: Index, format: Format) -> str | None:  # noqa: A002  the word of that room
    try:
        check_schemas(index, format)
    except ShardSchemaError as error:
        return str(error)
    return None


def _spread(values: NDArray[np.integer]) -> Spread | None:
    if not len(values):
        return None
    return Spread(int(values.min()), int(np.median(values)), int(values.max()))


def _blocks(figures: IndexFigures) -> str:
    rows, bytes_ = figures.rows_per_block, figures.bytes_per_block
    if rows is None or bytes_ is None:
        return "none"
    each = f"{figures.blocks:,}, each of {counted(rows.median, 'row')} and {size(bytes_.median)}"
    if rows.least == rows.most and bytes_.least == bytes_.most:
        return each
    return (
        f"{each} (median); {rows.least:,} to {rows.most:,} rows, "
        f"{size(bytes_.least)} to {size(bytes_.most)}"
    )


def _columns(schema: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(type_)) for name, type_ in columns_of(schema).items()]


def _giant(index: Index) -> str | None:
    """Warn of large blocks, unless their format has said so."""
    large = np.flatnonzero(index.decoded > _GIANT)
    large = np.array([b for b in large if int(index.file[b]) not in index.file_warnings], np.int64)
    if not len(large):
        return None
    largest = int(large[np.argmax(index.decoded[large])])
    return (
        f"{counted(len(large), 'block')} decoded to more than {size(_GIANT)}, the largest of "
        f"{size(int(index.decoded[largest]))} in {index.paths[int(index.file[largest])]}. A block "
        "is held in memory as a whole. Write the files again with smaller blocks."
    )


def _tiny(index: Index) -> str | None:
    tiny = int((index.decoded < _TINY).sum())
    if tiny < _MANY or 2 * tiny < len(index.file):
        return None
    return (
        f"{counted(tiny, 'block')} of {len(index.file):,} decoded to less than {size(_TINY)}. Each "
        "is opened by itself, which is slow. Write fewer and larger files or row groups."
    )
