"""The commands for files: `inspect` for checkpoints, `index` and `plan` for data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.text import Text

from dataporter.shards import shards_extra
from dataporter.tools.cli import output
from dataporter.tools.units import read_bytes, read_seconds

if TYPE_CHECKING:
    from dataporter.shards.opening import Wanted

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


def index(
    paths: Paths,
    columns: Columns = None,
    format_name: Format = None,
    dtype: Dtype = None,
    window: Window = None,
    folder: Folder = None,
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

        wanted = _wanted_data(
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


def plan(
    paths: Paths,
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
    columns: Columns = None,
    format_name: Format = None,
    dtype: Dtype = None,
    window: Window = None,
    folder: Folder = None,
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
            _wanted_data(paths, columns, format_name, dtype, window, folder, progress=not as_json)
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


def _wanted_data(
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
