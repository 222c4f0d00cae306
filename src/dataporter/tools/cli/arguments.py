"""Arguments that several commands have, and what they stand for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from dataporter.shards.opening import Wanted

Factory: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="package.module:function or path/to/file.py:function that returns a new loader at "
        "each call."
    ),
]
Paths: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="PATH", help="Folders, globs, files, URLs.")
]
Columns: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="A column to read; may be repeated. Default: all.")
]
Format: TypeAlias = Annotated[
    str | None, typer.Option("--format", help="The format, if names do not tell.")
]
Dtype: TypeAlias = Annotated[str | None, typer.Option(help="Of tokens in raw files: uint16, ...")]
Window: TypeAlias = Annotated[int | None, typer.Option(help="Tokens in a sample.")]
Folder: TypeAlias = Annotated[
    Path | None, typer.Option(help="Folder for the index. Default: beside the data.")
]


def import_from_here() -> None:
    """Find modules in the current folder too, as `python -m` does."""
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  a string is what the path holds


def wanted_data(
    paths: list[str],
    columns: list[str] | None,
    format_name: str | None,
    dtype: str | None,
    window: int | None,
    folder: Path | None,
    *,
    progress: bool,
    rebuild: bool = False,
) -> Wanted:
    """Return the data in files that these arguments name."""
    from dataporter.shards.formats.format import ReadOptions
    from dataporter.shards.opening import Wanted

    return Wanted(
        files=paths,
        options=ReadOptions(
            columns=tuple(columns) if columns else None, dtype=dtype, window=window
        ),
        format=format_name,
        folder=folder,
        progress=progress,
        rebuild=rebuild,
    )
