"""`dataporter verify package.module:make_loader`: check that a loader resumes exactly."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from dataporter.tools.cli.factories import Factory, import_from_here
from dataporter.tools.cli.terminal import make_console, waiting

if TYPE_CHECKING:
    from dataporter.tools.verify import Check, Present, Report

_STYLES = {"exact": "green", "differs": "bold red", "skipped": "dim", "not run": "yellow"}

Several = list[int]


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
    Exit status: 0 exact, 1 not exact, 2 if the factory cannot be used.
    """
    from dataporter.tools.verify import verify as verified

    import_from_here()
    console = make_console(quiet=as_json)
    progress = _Progress(console)
    with waiting(console, "interrupting and resuming") as say:
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
            on_start=progress.begin,
            on_check=progress.note,
            on_progress=lambda done, of: say(f"{done} of {of} checks"),
            shows_output=bool(context.obj),
        )
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    console.print(Text(f"\n{report.verdict()}"))
    if not report.is_exact:
        raise typer.Exit(1)


class _Progress:
    """Prints each check as soon as it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._explained = 0  # differences

    def begin(self, report: Report | Present) -> None:
        from dataporter.tools.verify import Report

        is_second = isinstance(report, Report) and report.present is not None
        self._console.print(Text(f"\n{report.heading()}" if is_second else report.heading()))
        # Of our loader, further differences are much the same as the first.
        self._explained = 1 if isinstance(report, Report) else sys.maxsize

    def note(self, check: Check) -> None:
        differs = check.outcome == "differs"
        words = check.text(with_words=not differs or self._explained > 0)
        self._explained -= differs
        self._console.print(Text(words, style=_STYLES[check.outcome]))
