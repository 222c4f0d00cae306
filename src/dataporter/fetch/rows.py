"""Checks that every collator makes of its rows, and their error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataporter.errors import CollationError
from dataporter.fetch.collate import collate
from dataporter.fetch.randomness import call_seeded


def check_rows(rows: Sequence[Any]) -> None:
    """Raise for a batch without rows, of which nothing can be made."""
    if len(rows) == 0:
        msg = "the batch is empty, expected at least one row. Leave empty batches out."
        raise CollationError(msg)


def columns_of(rows: Sequence[Mapping[str, Any]], where: str = "") -> dict[str, list[Any]]:
    """Turn rows into columns; all rows must have the same ones. Errors begin with `where`.

    >>> columns_of([{"x": 1, "y": 2}, {"x": 3, "y": 4}])
    {'x': [1, 3], 'y': [2, 4]}
    """
    if not all(type(row) is dict for row in rows):  # to read others may run the user's code
        return call_seeded(_columns_of, rows, where=where)
    return _columns_of(rows, where)


def _columns_of(rows: Sequence[Mapping[str, Any]], where: str) -> dict[str, list[Any]]:
    first = rows[0]
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            msg = (
                f"{where}row {number} is a {type(row).__name__}, expected a dict of columns. "
                "Let the dataset return one kind of rows."
            )
            raise CollationError(msg)
        if row.keys() != first.keys():
            msg = (
                f"{where}row {number} has the columns {_listed(row)}, but row 0 has "
                f"{_listed(first)}. Let every row have the same columns."
            )
            raise CollationError(msg)
    return {name: [row[name] for row in rows] for name in first}


def collate_columns(columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Collate each column for itself."""
    return {name: collate_values(values, f"column {name!r}") for name, values in columns.items()}


def take_column(columns: dict[str, list[Any]], names: Sequence[str]) -> list[Any] | None:
    """Remove and return the first of these columns that is there."""
    for name in names:
        if name in columns:
            return columns.pop(name)
    return None


def collate_values(values: Sequence[Any], what: str) -> Any:
    """Collate as default collation does; if that fails, say what it was and which row."""
    try:
        return collate(values)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        msg = f"{what} cannot be made into one batch: {_unlike(values) or error}"
        raise CollationError(msg) from error


def _unlike(values: Sequence[Any]) -> str | None:
    """Name the way in which the values differ from each other; None if their form is the same."""
    first = _form(values[0])
    for number, value in enumerate(values):
        if value is None:
            return f"row {number} has None. Leave such rows out, or give the column a value."
        if _form(value) != first:
            return (
                f"row {number} has {_form(value)}, row 0 has {first}. "
                "Let the dataset return equal shapes, or pad them in a collate_fn of your own."
            )
    return None


def _form(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"shape {tuple(shape)}"
    size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    return f"{type(value).__name__}{size}"


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "(none)"
