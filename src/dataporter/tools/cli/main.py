"""The app that all commands are registered with, and their exit statuses.

A command returns on success, raises `typer.Exit(1)` if a check failed, and a `DataPorterError` for
invalid input. The exit status is then 0, 1 or 2. It is 130 after Ctrl-C, 143 after SIGTERM and 129
after SIGHUP; each of them cleans up first. Tracebacks are shown with `--debug` only, which may
stand anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn, ParamSpec

import typer

from dataporter import __version__
from dataporter.errors import DataPorterError
from dataporter.tools.cli import signals
from dataporter.tools.cli.demo import demo
from dataporter.tools.cli.files import index, inspect, plan
from dataporter.tools.cli.loaders import bench, profile, show, verify
from dataporter.tools.cli.output import make_console, replace_missing_letters

BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

Parameters = ParamSpec("Parameters")

app = typer.Typer(
    name="dataporter",
    help="Check that a loader resumes exactly, and find out where its time goes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a docstring
)


class _InterruptedError(Exception):
    """Ctrl-C, hidden from typer, whose versions handle it differently."""


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
        bool, typer.Option("--debug", help="Show tracebacks, and the output of your code.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Declare both options for the help; `run` has taken `--debug` out of the arguments."""
    del debug, version


for command in (demo, verify, inspect, show, index, plan, profile, bench):
    app.command()(_interruptible(command))


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that the arguments name, and exit with its status."""
    replace_missing_letters()
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
            traceback.print_exception(error)
            if sys.version_info < (3, 11):  # newer versions show notes by themselves
                sys.stderr.writelines(f"{note}\n" for note in getattr(error, "__notes__", ()))
        _complain(str(error))
        sys.exit(BAD_INPUT)
    except BrokenPipeError:
        # The reader of the output is gone; Python would complain at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)


def _complain(message: str) -> None:
    from dataporter.layout import wrapped_lines

    console = make_console(stderr=True)
    with contextlib.suppress(OSError):  # the terminal may have been closed
        for line in f"dataporter: {message}".splitlines():
            console.print(wrapped_lines(line, console.width), markup=False)
