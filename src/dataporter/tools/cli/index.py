"""`dataporter index PATH`: the index of a dataset in files, built and shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from dataporter.shards.extra import shards_extra
from dataporter.tools.cli import arguments, output


def index(
    paths: arguments.Paths,
    columns: arguments.Columns = None,
    format_name: arguments.Format = None,
    dtype: arguments.Dtype = None,
    window: arguments.Window = None,
    folder: arguments.Folder = None,
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
        from dataporter.shards import ShardedDataset
        from dataporter.shards.opening import open_dataset
        from dataporter.tools.index import figures_of, lengths_of

        wanted = arguments.wanted_data(
            *(paths, columns, format_name, dtype, window, folder),
            progress=not as_json,
            rebuild=rebuild,
        )
        figures = figures_of(*open_dataset(wanted))
        if lengths is not None and figures.problem is None:
            len(ShardedDataset(paths, columns=[lengths], format=format_name, index=folder))
            # The column is there. Counts are kept for data that is read alike.
            data = ShardedDataset(paths, columns=columns, format=format_name, index=folder)
            figures = replace(figures, lengths=lengths_of(data, lengths))
    if as_json:
        output.print_json(figures.as_dict())
    output.print_parts(output.make_console(quiet=as_json), figures.parts())
    if figures.problem is not None:
        raise typer.Exit(1)
