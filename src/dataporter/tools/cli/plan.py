"""`dataporter plan PATH`: what a run over data in files will read, hold and wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dataporter.errors import OptionError
from dataporter.shards.extra import shards_extra
from dataporter.tools.cli.files import check_file, write_whole
from dataporter.tools.cli.terminal import make_console, say, waiting
from dataporter.tools.plan.amounts import read_bytes, read_seconds

if TYPE_CHECKING:
    from dataporter.shards.opening import Wanted
    from dataporter.tools.plan.figures import PlanFigures
    from dataporter.tools.plan.planned_run import PlannedRun

_PICTURES = (".svg", ".png", ".html")


def plan(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Folders, globs, files, URLs.")
    ],
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
        _check_picture(out)
    with shards_extra():
        figures = _figures(
            _wanted(paths, columns, format_name, dtype, window, folder, not as_json), run, as_json
        )
        _show(figures, out, as_json=as_json)
    if figures.cache is not None and not figures.cache.is_enough:
        raise typer.Exit(1)


def _check_picture(out: Path) -> None:
    if out.suffix.lower() not in _PICTURES:
        msg = f"--out must be a file {', '.join(_PICTURES)}, found {str(out)!r}."
        raise OptionError(msg)
    from dataporter.tools.pages import check_matplotlib

    check_matplotlib()
    check_file(out)


def _wanted(
    paths: list[str],
    columns: list[str] | None,
    format_name: str | None,
    dtype: str | None,
    window: int | None,
    folder: Path | None,
    progress: bool,
) -> Wanted:
    from dataporter.shards.formats.format import ReadOptions
    from dataporter.shards.opening import Wanted

    options = ReadOptions(columns=tuple(columns) if columns else None, dtype=dtype, window=window)
    return Wanted(
        files=paths, options=options, format=format_name, folder=folder, progress=progress
    )


def _figures(wanted: Wanted, run: PlannedRun, as_json: bool) -> PlanFigures:
    from dataporter.shards.opening import open_dataset
    from dataporter.shards.schemas import check_schemas
    from dataporter.tools.plan.figures import figures_of

    opened, reads = open_dataset(wanted)
    check_schemas(opened.index, reads)
    with waiting(make_console(quiet=as_json), "planning"):
        return figures_of(opened.index, reads, run)


def _show(figures: PlanFigures, out: Path | None, *, as_json: bool) -> None:
    from dataporter.layout import laid_out
    from dataporter.tools.plan.page import drawn
    from dataporter.tools.plan.report import rows_of, warnings_of

    warnings = warnings_of(figures)
    console = make_console(quiet=as_json)
    if as_json:
        typer.echo(json.dumps(figures.as_dict() | {"warnings": warnings}, indent=2))
    say(console, figures.root)
    console.print(Text(laid_out(rows_of(figures))))
    for text in warnings:
        say(console, f"\nWarning: {text}")
    if out is not None:
        write_whole(out, drawn(figures, out.suffix.lower()))
        say(console, f"\nThe picture is in {out}.")
