"""`dataporter verify package.module:make_loader`: prove that a loader resumes exactly."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dataporter.tools.verify import Check, Report
from dataporter.tools.verify import verify as verified

_STYLES = {"exact": "green", "differs": "bold red", "skipped": "dim", "not run": "yellow"}

Several = list[int]


def verify(
    context: typer.Context,
    factory: Annotated[
        str, typer.Argument(help="package.module:function; each call makes a new loader.")
    ],
    batches: Annotated[int, typer.Option(help="Batches of the uninterrupted run.")] = 32,
    seconds: Annotated[float, typer.Option(help="Time limit for all runs.")] = 120,
    seed: Annotated[int, typer.Option(help="Seed of the random interruptions.")] = 0,
    points: Annotated[int, typer.Option(help="Number of random interruptions.")] = 3,
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
    """Prove that your own loader resumes exactly, or say why it does not.

    The loader is interrupted at chosen and at random points. It resumes in new processes, with
    other numbers of workers, batch sizes and numbers of ranks; workers are killed. The rest is
    compared with an uninterrupted run, bit by bit. Exit status: 0 exact, 1 not exact, 2 invalid
    input.
    """
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  as `python -m` does
    console = Console(highlight=False, soft_wrap=True)
    progress = _Progress(console, quiet=as_json)
    with progress.spinner():
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
            shows_output=bool(context.obj),
        )
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        progress.print(f"\n{report.verdict()}", "")
    if not report.is_exact:
        raise typer.Exit(1)


class _Progress:
    """Prints each check as soon as it is done."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._differing = 0

    def spinner(self) -> contextlib.AbstractContextManager[object]:
        """Show a sign of life on a terminal."""
        if self._quiet or not self._console.is_terminal:
            return contextlib.nullcontext()
        return self._console.status("interrupting and resuming ...")

    def begin(self, report: Report) -> None:
        if not self._quiet:
            self.print(report.heading(), "")

    def note(self, check: Check) -> None:
        differs = check.outcome == "differs"
        self._differing += differs
        # Further differences are much like the first.
        words = check.text(with_words=not differs or self._differing <= 1)
        if not self._quiet:
            self.print(words, _STYLES[check.outcome])

    def print(self, words: str, style: str) -> None:
        self._console.print(Text(words, style=style))
