"""Differences between files of a dataset, in words: in their schemas, and since they were indexed.

Schemas drift if a file has another one than the first file. A schema with "columns" has the type of
each column there: by name, or in a list with the name first. Of other schemas, each entry counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataporter.errors import ShardChangedError, ShardSchemaError
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index

_MISSING = object()


def check_schemas(index: Index, format: Format) -> None:  # noqa: A002  the word of this room
    """Raise if files differ in a selected column. Then check the options against the schema."""
    drift = _drift(index, format, format.options.columns)
    if drift:
        msg = (
            f"Files have different schemas: {'; '.join(drift)}. Select columns that "
            "all files have, write these files again, or leave them out."
        )
        raise ShardSchemaError(msg)
    refusals = [error for schema in index.schemas if (error := _refusal(schema, format))]
    # Without a fixed schema, files need not have all columns.
    if refusals and (format.fixes_schema or len(refusals) == len(index.schemas)):
        raise refusals[0]


def _refusal(schema: Mapping[str, Any], format: Format) -> ShardSchemaError | None:  # noqa: A002  the word of this room
    try:
        format.check(schema)
    except ShardSchemaError as error:
        return error
    return None


def drift_in_words(index: Index, format: Format) -> str | None:  # noqa: A002  the word of this room
    """Name the files whose schemas differ from the first one's, and the columns that differ."""
    drift = _drift(index, format, None)
    if not drift:
        return None
    return (
        f"Files have different schemas: {'; '.join(drift)}. The dataset can be read "
        "if none of the columns that differ is selected."
    )


def _drift(
    index: Index,
    format: Format,  # noqa: A002  the word of this room
    selected: Sequence[str] | None,
) -> list[str]:
    """Describe each schema that differs from that of the first file in a selected column."""
    if not format.fixes_schema or not index.paths:
        return []
    first = int(index.schema_of[0])
    found = []
    for number, schema in enumerate(index.schemas):
        differences = _differences(index.schemas[first], schema, selected)
        if differences:
            files = [index.paths[int(file)] for file in np.flatnonzero(index.schema_of == number)]
            have = "has" if len(files) == 1 else "have"
            found.append(f"{named(files)} {have} {', '.join(differences)}")
    return [*found[:-1], f"{found[-1]} ({index.paths[0]} is the first file)"] if found else []


def _differences(
    first: Mapping[str, Any], other: Mapping[str, Any], selected: Sequence[str] | None
) -> list[str]:
    before, after = columns_of(first), columns_of(other)
    names = [*before, *(name for name in after if name not in before)]
    if selected is not None and "columns" in first:
        names = [name for name in names if name in selected]
    return [
        _difference(name, before.get(name, _MISSING), after.get(name, _MISSING))
        for name in names
        if before.get(name, _MISSING) != after.get(name, _MISSING)
    ]


def columns_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the type of each column, by name."""
    columns = schema.get("columns")
    if isinstance(columns, Mapping):
        return columns
    if isinstance(columns, Sequence):  # of each: name, and what its type consists of
        return {name: rest[0] if len(rest) == 1 else rest for name, *rest in columns}
    return schema


def _difference(name: str, before: object, after: object) -> str:
    if after is _MISSING:
        return f"no {name!r}"
    expected = "a file without it before" if before is _MISSING else f"expected {before}"
    return f"{name!r} of type {after} ({expected})"


_SHOWN = 3


def changes_in_words(old: Index, new: Index) -> str | None:
    """Name the files that were added, removed and replaced. Return None if the data is the same."""
    if old.fingerprint == new.fingerprint:
        return None
    before = {file.path: file for file in old.files()}
    after = {file.path: file for file in new.files()}
    both = [path for path in after if path in before]
    changes = {
        "added": [path for path in after if path not in before],
        "removed": [path for path in before if path not in after],
        "replaced": [path for path in both if not before[path].has_same_rows(after[path])],
    }
    found = [f"{len(paths):,} {what} ({named(paths)})" for what, paths in changes.items() if paths]
    return (
        f"The files in {new.root} changed since they were indexed: {', '.join(found)}. The dataset "
        f"has {len(new):,} rows now, and had {len(old):,}. States saved before belong to the old "
        "data. To resume them, restore its files."
    )


def named(paths: Sequence[str]) -> str:
    """Name the first few paths.

    >>> named(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def require_unchanged(index: Index, file: int, status: os.stat_result | None) -> None:
    """Raise unless a file is the one that was indexed. The status of a missing file is None."""
    size, version = int(index.sizes[file]), index.versions[file]
    if status is None:
        difference = "it is gone"
    elif status.st_size != size:
        difference = f"it has {status.st_size:,} bytes, and had {size:,}"
    elif str(status.st_mtime_ns) != version:
        difference = "it was written again since"
    else:
        return
    msg = (
        f"a file changed after it was indexed: {index.root / index.paths[file]}: {difference}. Put "
        "the file back, or build the dataset anew, which indexes the file again; a state of the "
        "old data is refused then."
    )
    raise ShardChangedError(msg)
