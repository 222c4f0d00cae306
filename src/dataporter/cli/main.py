"""The app that all commands are registered with, and how each of them ends.

A command returns nothing where all is well, raises `typer.Exit(1)` for bad news, and a
`DataPorterError` for what it was given and cannot use. The exit status is 0, 1 and 2 then; 130
after Ctrl-C. Tracebacks are shown with `--debug` only, which may stand anywhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import click
import typer
from rich.console import Console

from dataporter.cli.inspect import inspect
from dataporter.cli.verify import verify
from dataporter.errors import DataPorterError
from dataporter.explanation import printable

BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

app = typer.Typer(
    name="dataporter",
    help="See and prove how a loader resumes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks, and what your code prints.")
    ] = False,
) -> None:
    """Have `--debug` in the help; `run` has taken it out of the arguments."""
    del debug


app.command()(verify)
app.command()(inspect)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that the arguments name, and exit with its status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        sys.exit(_status(arguments, debug=debug))
    except BrokenPipeError:
        # Whoever read the output has gone; Python would complain at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)


def _status(arguments: list[str], *, debug: bool) -> int:
    try:
        status = app(arguments, prog_name="dataporter", standalone_mode=False, obj=debug)
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted.")
        return INTERRUPTED
    except DataPorterError as error:
        if debug:
            traceback.print_exc()
            for note in getattr(error, "__notes__", ()) if sys.version_info < (3, 11) else ():
                sys.stderr.write(f"{note}\n")
        _complain(str(error))
        return BAD_INPUT
    return status if isinstance(status, int) else 0


def _complain(words: str) -> None:
    console = Console(stderr=True)
    for line in f"dataporter: {words}".splitlines():
        console.print(printable(line), markup=False, highlight=False)
