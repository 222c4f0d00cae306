"""The argument that names the user's factory, the same in every command that has one."""

from __future__ import annotations

import os
import sys
from typing import Annotated, TypeAlias

import typer

Factory: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="package.module:function or path/to/file.py:function that returns a new loader at "
        "each call."
    ),
]


def import_from_here() -> None:
    """Find modules in the current folder too, as `python -m` does."""
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  a string is what the path holds
