"""The columns that a user chooses, checked against those that files have."""

from __future__ import annotations

from collections.abc import Iterable

from dataporter.arguments import did_you_mean
from dataporter.errors import ShardSchemaError


def check_columns(columns: Iterable[str] | None, present: Iterable[str]) -> None:
    """Raise if a chosen column is not among those that are present.

    >>> check_columns(["txt"], {"text": "string", "label": "int64"})
    Traceback (most recent call last):
    dataporter.errors.ShardSchemaError: No column is named 'txt'. Did you mean 'text'? The files ...
    """
    present = list(present)
    missing = [name for name in columns or () if name not in present]
    if missing:
        hint = "".join(did_you_mean(name, present) for name in missing[:1])
        msg = (
            f"No column is named {' or '.join(map(repr, missing))}.{hint} "
            f"The files have {', '.join(map(repr, present)) or 'no columns'}."
        )
        raise ShardSchemaError(msg)
