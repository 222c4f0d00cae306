"""Output that a terminal, a pipe and an old encoding can all show."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.text import Text

_PLAIN = {"µ": "u", "±": "+-", "█": "#"}  # a question mark would hide the meaning
_ERRORS = "dataporter.plain"


def make_console(*, quiet: bool = False, stderr: bool = False) -> Console:
    """Make a console that colours nothing by itself; a quiet one shows nothing."""
    return Console(highlight=False, soft_wrap=True, quiet=quiet, stderr=stderr)


@contextlib.contextmanager
def waiting(console: Console, words: str) -> Iterator[Callable[[str], None]]:
    """Show that something is going on, if the output is a terminal; yield a way to say more."""
    if console.quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(f"{words} ...") as status:
        yield lambda more: status.update(f"{words}: {more} ...")


def say(console: Console, words: str, style: str = "") -> None:
    """Print plain text in lines of at most 80 columns."""
    from dataporter.layout import WIDTH, printable, wrapped_lines

    lines = words.split("\n")
    wrapped = (wrapped_lines(line) if len(line) > WIDTH else printable(line) for line in lines)
    console.print(Text("\n".join(wrapped), style=style))


def replace_missing_letters() -> None:
    """Write letters that the output's encoding lacks as other ones, instead of failing."""
    codecs.register_error(_ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in letters), error.end
