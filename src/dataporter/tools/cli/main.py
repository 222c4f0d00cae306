"""The app that all commands are registered with, and how each of them ends.

A command returns nothing where all is well, raises `typer.Exit(1)` for bad news, and a
`DataPorterError` for what it was given and cannot use. The exit status is 0, 1 and 2 then; 130
after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, all of which clean up first. Tracebacks are
shown with `--debug` only, which may stand anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn, ParamSpec

import typer
from rich.console import Console

from dataporter import __version__
from dataporter.errors import DataPorterError
from dataporter.law.explanation import printable
from dataporter.tools.cli import signals
from dataporter.tools.cli.bench import bench
from dataporter.tools.cli.demo import demo
from dataporter.tools.cli.inspect import inspect
from dataporter.tools.cli.letters import show_plainly
from dataporter.tools.cli.profile import profile
from dataporter.tools.cli.verify import verify

BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

Parameters = ParamSpec("Parameters")

app = typer.Typer(
    name="dataporter",
    help="See and prove how a loader resumes, and where its time goes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # lines of a docstring flow into the width there is
)


class _InterruptedError(Exception):
    """Ctrl-C, kept from typer, whose versions differ in what they make of it."""


def _interruptible(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    @functools.wraps(command)
    def interruptible(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise _InterruptedError from None

    return interruptible


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"dataporter {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks, and what your code prints.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Have both in the help; `run` has taken `--debug` out of the arguments."""
    del debug, version


for command in (demo, verify, inspect, profile, bench):
    app.command()(_interruptible(command))


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that the arguments name, and exit with its status."""
    show_plainly()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with signals.raised():
            app(arguments, prog_name="dataporter", obj=debug)
        sys.exit(0)
    except signals.EndedError as ended:
        _complain(str(ended))
        sys.exit(ended.status)
    except (_InterruptedError, KeyboardInterrupt):
        _complain("interrupted.")
        sys.exit(INTERRUPTED)
    except DataPorterError as error:
        if debug:
            _show_traceback(error)
        _complain(str(error))
        sys.exit(BAD_INPUT)
    except BrokenPipeError:
        # Whoever read the output has gone; Python would complain at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)


def _show_traceback(error: Exception) -> None:
    traceback.print_exception(error)
    if sys.version_info < (3, 11):  # which shows notes by itself
        sys.stderr.writelines(f"{note}\n" for note in getattr(error, "__notes__", ()))


def _complain(words: str) -> None:
    console = Console(stderr=True)
    with contextlib.suppress(OSError):  # of a terminal that has been closed
        for line in f"dataporter: {words}".splitlines():
            # Paths and names in it are to be copied, so they stay whole, however long they are.
            wrapped = textwrap.fill(
                printable(line), console.width, break_long_words=False, break_on_hyphens=False
            )
            console.print(wrapped, markup=False, highlight=False, soft_wrap=True)
