"""`dataporter bench package.module:make_loader`: this loader and others on the user's data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from dataporter.tools.cli.factories import Factory, import_from_here
from dataporter.tools.cli.terminal import make_console, say, waiting

if TYPE_CHECKING:
    from dataporter.tools.bench import Comparison


def bench(
    context: typer.Context,
    factory: Factory,
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

    import_from_here()
    console = make_console(quiet=as_json)
    with waiting(console, "measuring"):
        found = compared(
            factory,
            batches=batches,
            rounds=rounds,
            seconds=seconds,
            shows_output=bool(context.obj),
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    workers = "1 worker" if found.num_workers == 1 else f"{found.num_workers} workers"
    say(console, f"{found.dataset}, batches of {found.batch_size:.4g}, {workers}")
    console.print(_table(found))
    for name, why in found.failed.items():
        if name != "dataporter":  # whose failure is the verdict
            say(console, f"{name} failed: {why}")
    say(console, found.verdict, "bold")
    if "dataporter" in found.failed:
        raise typer.Exit(1)


def _table(found: Comparison) -> Table:
    table = Table("loader", box=SIMPLE, show_edge=False)
    for heading in ("samples/s", "to torch", "spread", "of limit"):
        table.add_column(heading, justify="right")
    for name, version in found.versions.items():
        if name in found.failed:
            table.add_row(f"{name} {version}", "failed")
            continue
        ratio, spread = found.to_torch(name), found.spread(name)
        table.add_row(
            f"{name} {version}",
            f"{found.speeds[name]:,.0f}",
            "" if ratio is None else f"{ratio:.2f}x",
            "" if spread is None or name == "torch" else f"{spread[0]:.2f}x to {spread[1]:.2f}x",
            f"{100 * found.of_limit(name):.0f} %",
        )
    for name in found.absent:
        table.add_row(name, "not installed")
    table.add_row("limit", f"{found.limit:,.0f}", "", "", "100 %")
    return table
