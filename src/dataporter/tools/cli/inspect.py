"""`dataporter inspect`: the loader states in checkpoints, explained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dataporter.tools.cli import output


def inspect(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="Checkpoints: files or folders of any framework, or JSON."
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="The data of a ShardedDataset: a folder, glob or URL, or the folder of its index; "
            "may be repeated.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the states as JSON; a list, if of several paths.")
    ] = False,
) -> None:
    """Find the loader states in checkpoints, and show their position and what comes next.

    If the index of a state's data is kept on this machine, show it and the files, rows and blocks
    that come next. No code in a checkpoint is run; neither its weights nor the data are read.
    Exit status: 0; 1 if a checkpoint has no state of the data named by --data; 2 if one has no
    state that can be read.
    """
    from dataporter.tools.inspect import KnownData
    from dataporter.tools.inspect.report import inspected, inspected_or_not

    known = KnownData(data or [])
    if len(paths) == 1:
        found = [inspected(paths[0], known)]
    else:
        found = [inspected_or_not(path, known) for path in paths]
    if as_json:
        each = [one.as_dict() for one in found]
        output.print_json(each if len(paths) > 1 else each[0])
    else:
        output.make_console().print(Text("\n\n\n".join(one.text() for one in found)))
    if not all(one.is_readable for one in found):
        raise typer.Exit(2)
    if data and not all(one.is_of_data for one in found):
        raise typer.Exit(1)
