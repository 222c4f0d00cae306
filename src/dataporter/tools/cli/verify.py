"""`dataporter verify package.module:make_loader`: check that a loader resumes exactly."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from dataporter.tools.cli import arguments, output

if TYPE_CHECKING:
    from dataporter.tools.verify import Check, Present, Report

# Exit statuses; 2 is invalid input.
_STATUS = {"exact": 0, "differs": 1, "incomplete": 3}

_STYLES = {"exact": "green", "differs": "bold red", "skipped": "dim", "not run": "yellow"}

Several = list[int]


def verify(
    context: typer.Context,
    factory: arguments.Factory,
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

    arguments.import_from_here()
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
