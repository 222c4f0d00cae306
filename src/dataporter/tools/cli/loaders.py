"""The commands for a user's loader: `verify`, `profile`, `bench` and `show`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.text import Text

from dataporter.errors import OptionError
from dataporter.tools.cli import output

if TYPE_CHECKING:
    from dataporter.tools.profile import Profile
    from dataporter.tools.verify import Check, Present, Report

Factory: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="package.module:function or path/to/file.py:function that returns a new loader at "
        "each call."
    ),
]

Several = list[int]

# Exit statuses; 2 is invalid input.
_STATUS = {"exact": 0, "differs": 1, "incomplete": 3}

_STYLES = {"exact": "green", "differs": "bold red", "skipped": "dim", "not run": "yellow"}


def verify(
    context: typer.Context,
    factory: Factory,
    batches: Annotated[int, typer.Option(help="Batches of the uninterrupted run.")] = 32,
    seconds: Annotated[float, typer.Option(help="Time limit.")] = 120,
    seed: Annotated[int, typer.Option(help="Seed of the random interruptions.")] = 0,
    points: Annotated[int, typer.Option(help="Random interruptions.")] = 3,
    workers: Annotated[
        Several | None, typer.Option(help="Worker count to resume with; may be repeated.")
    ] = None,
    batch_size: Annotated[
        Several | None, typer.Option(help="Batch size to resume with; may be repeated.")
    ] = None,
    world_size: Annotated[
        Several | None, typer.Option(help="Number of ranks to resume on; may be repeated.")
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first difference.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check that your own loader resumes exactly, or find out why it does not.

    The loader is interrupted at chosen and at random points and resumed in new processes, with
    different numbers of workers, batch sizes and numbers of ranks. Workers are killed. The batches
    that follow are compared with an uninterrupted run, bit by bit. A loader of torch or torchdata
    is first interrupted as it is, then verified as a ResumableDataLoader with the same arguments.
    Exit status: 0 exact, 1 not exact, 2 if the factory cannot be used, 3 if the time was up before
    all was checked.
    """
    from dataporter.tools.verify import verify as verified

    _import_from_here()
    console = output.make_console(quiet=as_json)
    printer = _CheckPrinter(console)
    with output.waiting(console, "interrupting and resuming") as say:
        report = verified(
            factory,
            batches=batches,
            seconds=seconds,
            seed=seed,
            points=points,
            workers=workers or None,
            batch_sizes=batch_size or None,
            world_sizes=world_size or None,
            fail_fast=fail_fast,
            on_start=printer.begin,
            on_check=printer.note,
            on_progress=lambda done, of: say(f"{done} of {of} checks"),
            shows_output=bool(context.obj),
        )
    if as_json:
        output.print_json(report.as_dict())
    for line in report.more_differences():
        console.print(Text(line, style=_STYLES["differs"]))
    console.print(Text(f"\n{report.verdict()}"))
    if _STATUS[report.outcome]:
        raise typer.Exit(_STATUS[report.outcome])


class _CheckPrinter:
    """Prints each check as soon as it is done, but not all differences of our loader."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0  # differences that are still to be shown

    def begin(self, report: Report | Present) -> None:
        from dataporter.tools.verify.report import SHOWN_DIFFERENCES, Report

        is_second = isinstance(report, Report) and report.present is not None
        self._console.print(Text(f"\n{report.heading()}" if is_second else report.heading()))
        self._shown = SHOWN_DIFFERENCES if isinstance(report, Report) else sys.maxsize

    def note(self, check: Check) -> None:
        differs = check.outcome == "differs"
        if not differs or self._shown > 0:
            self._console.print(Text(check.text(), style=_STYLES[check.outcome]))
        self._shown -= differs


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
    from dataporter.tools.pictures import check_matplotlib
    from dataporter.tools.profile import profile as profiled
    from dataporter.tools.profile.timeline import trace_of

    for path in (html, trace):
        if path is not None:
            output.check_file(path)
    if html is not None:
        check_matplotlib()
    _import_from_here()
    console = output.make_console(quiet=as_json)

    def show(found: Profile) -> None:
        output.print_parts(console, found.parts())
        if tune:
            console.print("\nTuning:")

    with output.waiting(console, "measuring") as tell:
        found = profiled(
            factory,
            batches=batches,
            seconds=seconds,
            step_ms=step_ms,
            tune=tune,
            on_profile=show,
            on_trial=lambda trial: output.say(console, str(trial)),
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

    _import_from_here()
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


def show(
    context: typer.Context,
    factory: Factory,
    state: Annotated[
        Path | None, typer.Option(help="The checkpoint of the run: a file or a folder.")
    ] = None,
    place: Annotated[
        str | None, typer.Option(help="Which state, if the checkpoint has several.")
    ] = None,
    back: Annotated[
        int | None, typer.Option(help="Batches before the one delivered last. Default: 0.")
    ] = None,
    position: Annotated[int | None, typer.Option(help="Position where the step began.")] = None,
    epoch: Annotated[int | None, typer.Option(help="Epoch. Default: the state's, or 0.")] = None,
    rank: Annotated[int, typer.Option(help="Rank whose batch it is.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write a page .html, or the images as .png.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time limit.")] = 120,
    as_json: Annotated[bool, typer.Option("--json", help="Print the batch as JSON.")] = False,
) -> None:
    """Show a batch of a run again: the one of a loss spike, with its samples and augmentation.

    The loader is made in a separate process, with the batch size and the ranks of the state, and
    fetches one batch. Exit status: 0, or 2 if the factory, the state or the batch cannot be used.
    """
    from dataporter.tools.show import BatchToShow
    from dataporter.tools.show import show as shown
    from dataporter.tools.show.report import as_dict, drawn, parts_of

    if out is not None:
        output.check_picture(out, (".html", ".png"))
    saved = None if state is None else _state_in(state, place)
    wanted = BatchToShow(state=saved, back=back, epoch=epoch, position=position, rank=rank)
    _import_from_here()
    console = output.make_console(quiet=as_json)
    with output.waiting(console, "fetching the batch"):
        found = shown(factory, wanted, seconds=seconds, shows_output=bool(context.obj))
    if as_json:
        output.print_json(as_dict(found))
    output.print_parts(console, parts_of(found))
    if out is not None:
        output.write_whole(out, drawn(found, out.suffix.lower()))
        output.say(console, f"\nThe {'page' if out.suffix == '.html' else 'picture'} is in {out}.")


def _state_in(path: Path, place: str | None) -> Mapping[str, Any]:
    """Return the loader's state in a checkpoint."""
    from dataporter.tools.inspect import find_states

    states = find_states(path).states
    fitting = [each for each in states if any((place or "") in where for where in each.places)]
    if len(fitting) == 1:
        return fitting[0].state
    places = ", ".join(each.places[0] or "the whole file" for each in fitting or states)
    found = f"{len(states)} loader states" if len(states) > 1 else "one loader state"
    which = f"none of them at {place!r}" if not fitting else f"of which {len(fitting)} fit"
    msg = f"{path} has {found}, {which}: {places}. Name one by --place, or a part of its name."
    raise OptionError(msg)


def _import_from_here() -> None:
    """Find modules in the current folder too, as `python -m` does."""
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  a string is what the path holds
