"""`dataporter profile package.module:make_loader`: where a loader's time goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dataporter.tools.cli.factories import Factory, import_from_here
from dataporter.tools.cli.files import check_file, write_whole
from dataporter.tools.cli.terminal import make_console, waiting

if TYPE_CHECKING:
    from dataporter.tools.profile import Profile


def profile(
    context: typer.Context,
    factory: Factory,
    step_ms: Annotated[float, typer.Option(help="Simulated step, in milliseconds.")] = 20,
    batches: Annotated[int, typer.Option(help="Batches to measure.")] = 200,
    seconds: Annotated[float, typer.Option(help="Time limit.")] = 60,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search for workers, engine and prefetch_factor.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with a timeline.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Show where a loader's time goes, whether training waits for it, and what to change.

    Batches are drawn in a separate process, each followed by a step that sleeps, as a process does
    while its device computes. For a torch DataLoader only waits are visible. --tune tries other
    settings on the loader until the time is over. Exit status: 0, or 2 if the factory cannot be
    used.
    """
    from dataporter.tools.pages import check_matplotlib
    from dataporter.tools.profile import profile as profiled
    from dataporter.tools.profile.page import page_of
    from dataporter.tools.profile.report import TRIALS, trial_line

    for path in (html, trace):
        if path is not None:
            check_file(path)
    if html is not None:
        check_matplotlib()
    import_from_here()
    console = make_console(quiet=as_json)

    def show(words: str) -> None:
        console.print(Text(words))

    with waiting(console, "measuring") as say:
        found = profiled(
            factory,
            batches=batches,
            seconds=seconds,
            step_ms=step_ms,
            tune=tune,
            on_profile=lambda early: show(early.text() + (f"\n\n{TRIALS}" if tune else "")),
            on_trial=lambda trial: show(trial_line(trial)),
            on_progress=lambda done, most: say(f"{done} of at most {most} trials"),
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
    from dataporter.tools.profile.trace import trace_of

    return trace_of(found.measured)
