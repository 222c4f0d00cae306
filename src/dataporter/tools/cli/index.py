"""`dataporter index PATH`: the index of a dataset in files, built and shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dataporter.shards.extra import shards_extra
from dataporter.tools.cli.terminal import make_console, say

if TYPE_CHECKING:
    from dataporter.tools.index import IndexFigures

_SHOWN = 5  # warnings


def index(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Folders, globs, files, URLs.")
    ],
    columns: Annotated[
        list[str] | None, typer.Option(help="A column to read; may be repeated. Default: all.")
    ] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", help="The format, if names do not tell.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of tokens in raw files: uint16, ...")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens in a sample.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the index. Default: beside the data.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Count the token ids in a column, to pack it later."),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Scan all files again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Build the index of a dataset in files, and show what the dataset consists of.

    Files that were indexed before and have not changed are not scanned again. Exit status: 0; 1
    if files differ in the columns, or a column is missing; 2 if a file cannot be read.
    """
    with shards_extra():
        figures = _figures(paths, columns, format_name, dtype, window, folder, rebuild, not as_json)
        if lengths is not None and figures.problem is None:
            figures = _with_lengths(figures, paths, columns, lengths, format_name, folder)
    if as_json:
        typer.echo(json.dumps(figures.as_dict(), indent=2))
    else:
        _show(figures)
    if figures.problem is not None:
        raise typer.Exit(1)


def _figures(
    paths: list[str],
    columns: list[str] | None,
    format_name: str | None,
    dtype: str | None,
    window: int | None,
    folder: Path | None,
    rebuild: bool,
    progress: bool,
) -> IndexFigures:
    from dataporter.shards.formats.format import ReadOptions
    from dataporter.shards.opening import Wanted, open_dataset
    from dataporter.tools.index import figures_of

    options = ReadOptions(columns=tuple(columns) if columns else None, dtype=dtype, window=window)
    opened, reads = open_dataset(
        Wanted(
            files=paths,
            options=options,
            format=format_name,
            folder=folder,
            progress=progress,
            rebuild=rebuild,
        )
    )
    return figures_of(opened, reads)


def _with_lengths(
    figures: IndexFigures,
    paths: list[str],
    columns: list[str] | None,
    column: str,
    format_name: str | None,
    folder: Path | None,
) -> IndexFigures:
    from dataporter.shards import ShardedDataset
    from dataporter.tools.index import lengths_of

    len(ShardedDataset(paths, columns=[column], format=format_name, index=folder))  # it is there
    # Counts are kept for data that is read alike.
    data = ShardedDataset(paths, columns=columns, format=format_name, index=folder)
    return replace(figures, lengths=lengths_of(data, column))


def _show(figures: IndexFigures) -> None:
    from dataporter.layout import counted, laid_out

    console = make_console()
    say(console, figures.root)
    console.print(Text(laid_out(figures.as_rows())))
    say(console, f"Index: {figures.index}")
    for text in figures.warnings[:_SHOWN]:
        say(console, f"\nWarning: {text}")
    if len(figures.warnings) > _SHOWN:
        more = len(figures.warnings) - _SHOWN
        say(console, f"\n{counted(more, 'more warning')}: --json shows all of them.")
    if figures.problem is not None:
        say(console, f"\nNot readable: {figures.problem}", "bold")
