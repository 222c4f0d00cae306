"""`dataporter plan PATH`: what a run over data in files will read, hold and wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataporter.shards.extra import shards_extra
from dataporter.tools.cli import arguments, output
from dataporter.tools.units import read_bytes, read_seconds


def plan(
    paths: arguments.Paths,
    batch: Annotated[int, typer.Option(help="Samples in a batch of one rank.")],
    nodes: Annotated[int, typer.Option(help="Machines, each with a cache.")] = 1,
    ranks: Annotated[int, typer.Option(help="Ranks of one node.")] = 1,
    workers: Annotated[int, typer.Option(help="Workers of one rank.")] = 8,
    cache: Annotated[str | None, typer.Option(help="Cache of a node, such as 200GB.")] = None,
    in_order: Annotated[
        bool, typer.Option("--no-shuffle", help="The loader does not shuffle.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the loader.")] = 0,
    resume_at: Annotated[
        float | None, typer.Option(help="Also plan a resume after this share of an epoch.")
    ] = None,
    bandwidth: Annotated[str, typer.Option(help="Bytes a second that come to a node.")] = "1GB",
    latency: Annotated[str, typer.Option(help="Round trip to the storage.")] = "30ms",
    columns: arguments.Columns = None,
    format_name: arguments.Format = None,
    dtype: arguments.Dtype = None,
    window: arguments.Window = None,
    folder: arguments.Folder = None,
    out: Annotated[
        Path | None, typer.Option(help="Draw the plan: a file .svg, .png or .html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Show what a run over data in files will read, hold and wait for, before it starts.

    All of it follows from the index, which is built first if there is none. No data is read. Exit
    status: 0; 1 if --cache is too small for the run; 2 if an option or a file cannot be used.
    """
    from dataporter.tools.plan.planned_run import PlannedRun

    run = PlannedRun(
        nodes=nodes,
        ranks=ranks,
        batch=batch,
        workers=workers,
        shuffle=not in_order,
        seed=seed,
        resume_at=resume_at,
        cache_bytes=None if cache is None else read_bytes("--cache", cache),
        bandwidth=float(read_bytes("--bandwidth", bandwidth)),
        latency=read_seconds("--latency", latency),
    )
    if out is not None:
        output.check_picture(out, (".svg", ".png", ".html"))
    console = output.make_console(quiet=as_json)
    with shards_extra():
        from dataporter.shards.opening import open_dataset
        from dataporter.shards.schemas import check_schemas
        from dataporter.tools.plan.figures import figures_of
        from dataporter.tools.plan.report import drawn, parts_of, warnings_of

        opened, reads = open_dataset(
            arguments.wanted_data(
                paths, columns, format_name, dtype, window, folder, progress=not as_json
            )
        )
        check_schemas(opened.index, reads)
        with output.waiting(console, "planning"):
            figures = figures_of(opened.index, reads, run)
    if as_json:
        output.print_json(figures.as_dict() | {"warnings": warnings_of(figures)})
    output.print_parts(console, parts_of(figures))
    if out is not None:
        output.write_whole(out, drawn(figures, out.suffix.lower()))
        output.say(console, f"\nThe picture is in {out}.")
    if figures.cache is not None and not figures.cache.is_enough:
        raise typer.Exit(1)
