"""The collator for rows of unknown kind, which stacks all columns that it can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataporter.fetch import draws_nothing
from dataporter.fetch.rows import check_rows, collate_columns, collate_values, columns_of


class DefaultCollator:
    """Collates like torch's `default_collate`, with errors that name the row that does not fit.

    >>> DefaultCollator()([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'x': tensor([1, 2]), 'name': ['a', 'b']}
    """

    @draws_nothing
    def __call__(self, rows: Sequence[Any]) -> Any:
        check_rows(rows)
        # Subclasses of dict keep their type: default collation takes care of that.
        if type(rows[0]) is not dict:
            return collate_values(rows, "the rows")
        return collate_columns(columns_of(rows))

    def __repr__(self) -> str:
        return "DefaultCollator()"
