"""`dataporter profile package.module:make_loader`: show where a loader's time goes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dataporter.tools.cli.files import check_file, write_whole
from dataporter.tools.profile import Profile
from dataporter.tools.profile import profile as profiled
from dataporter.tools.profile.page import page_of
from dataporter.tools.profile.report import TRIALS, trial_line
from dataporter.tools.profile.trace import trace_of


def profile(
    context: typer.Context,
    factory: Annotated[
        str, typer.Argument(help="package.module:function; each call makes a new loader.")
    ],
    step_ms: Annotated[float, typer.Option(help="Milliseconds of a simulated step.")] = 20,
    batches: Annotated[int, typer.Option(help="Batches to measure.")] = 200,
    seconds: Annotated[float, typer.Option(help="Time limit for all runs.")] = 60,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search for workers, engine and prefetch_factor.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with a timeline.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace, for ui.perfetto.dev.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Show where a loader's time goes, whether training waits for it, and what to change.

    Another process takes the batches. Each is followed by a step that sleeps, as a process does
    while its device computes. Of a torch DataLoader, only waits are visible. With --tune, other
    settings are tried on the loader itself as long as there is time. Exit status: 0 success, 2
    invalid input.
    """
    for path in (html, trace):
        if path is not None:
            check_file(path)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  as `python -m` does
    console = Console(highlight=False, soft_wrap=True)
    show = _shower(console, quiet=as_json)
    watched = console.is_terminal and not as_json
    with console.status("measuring ...") if watched else contextlib.nullcontext():
        found = profiled(
            factory,
            batches=batches,
            seconds=seconds,
            step_ms=step_ms,
            tune=tune,
            on_profile=lambda early: show(early.text() + (f"\n\n{TRIALS}" if tune else "")),
            on_trial=lambda trial: show(trial_line(trial)),
            shows_output=bool(context.obj),
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    if found.tuning is not None:
        show(f"\n{found.tuning_text()}")
    for path, made, what in ((html, page_of, "page"), (trace, _traced, "trace")):
        if path is not None:
            write_whole(path, made(found))
            show(f"\nThe {what} is in {path}.")


def _traced(found: Profile) -> str:
    return trace_of(found.measured)


def _shower(console: Console, *, quiet: bool) -> Callable[[str], None]:
    def show(words: str) -> None:
        if not quiet:
            console.print(Text(words))

    return show
