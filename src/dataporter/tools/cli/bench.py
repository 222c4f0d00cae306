"""`dataporter bench package.module:make_loader`: this loader and others on the user's data."""

from __future__ import annotations

from typing import Annotated

import typer

from dataporter.tools.cli import arguments, output


def bench(
    context: typer.Context,
    factory: arguments.Factory,
    batches: Annotated[int, typer.Option(help="Batches of a turn.")] = 200,
    rounds: Annotated[int, typer.Option(help="Turns of each loader.")] = 5,
    seconds: Annotated[float, typer.Option(help="Time limit; turns get shorter to meet it.")] = 120,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare torch's loader, torchdata's and dataporter's on your own data.

    The arguments are those of the loader that the factory returns. The loaders take turns and the
    median counts. The limit is workers x the speed of a bare loop over the dataset in one process.
    Exit status: 0; 1 if dataporter fails; 2 if the factory cannot be used, or no loader runs.
    """
    from dataporter.tools.bench import bench as compared

    arguments.import_from_here()
    console = output.make_console(quiet=as_json)
    with output.waiting(console, "measuring"):
        found = compared(
            factory,
            batches=batches,
            rounds=rounds,
            seconds=seconds,
            shows_output=bool(context.obj),
        )
    if as_json:
        output.print_json(found.as_dict())
    output.print_parts(console, found.parts())
    if "dataporter" in found.failed:
        raise typer.Exit(1)
