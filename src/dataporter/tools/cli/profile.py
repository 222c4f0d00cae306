"""`dataporter profile package.module:make_loader`: where a loader's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dataporter.tools.cli import arguments, output

if TYPE_CHECKING:
    from dataporter.tools.profile import Profile


def profile(
    context: typer.Context,
    factory: arguments.Factory,
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
    from dataporter.tools.pictures import check_matplotlib
    from dataporter.tools.profile import profile as profiled
    from dataporter.tools.profile.report import TRIALS, trial_line
    from dataporter.tools.profile.trace import trace_of

    for path in (html, trace):
        if path is not None:
            output.check_file(path)
    if html is not None:
        check_matplotlib()
    arguments.import_from_here()
    console = output.make_console(quiet=as_json)

    def show(found: Profile) -> None:
        output.print_parts(console, found.parts())
        if tune:
            console.print(f"\n{TRIALS}")

    with output.waiting(console, "measuring") as tell:
        found = profiled(
            factory,
            batches=batches,
            seconds=seconds,
            step_ms=step_ms,
            tune=tune,
            on_profile=show,
            on_trial=lambda trial: console.print(Text(trial_line(trial))),
            on_progress=lambda done, most: tell(f"{done} of at most {most} trials"),
            shows_output=bool(context.obj),
        )
    if as_json:
        output.print_json(found.as_dict())
    if found.tuning is not None:
        output.say(console, f"\n{found.tuning.words}")
    if html is not None:
        output.write_whole(html, found.page())
        output.say(console, f"\nThe page is in {html}.")
    if trace is not None:
        output.write_whole(trace, trace_of(found.measured))
        output.say(console, f"\nThe trace is in {trace}.")
