"""Output of commands: words on a terminal, a pipe or an old encoding, JSON, and whole files."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from dataporter.errors import OptionError

_PLAIN = {"µ": "u", "±": "+-", "█": "#"}  # a question mark would hide the meaning
_ERRORS = "dataporter.plain"
_STYLES = {"good": "bold green", "bad": "bold red", "strong": "bold", "soft": "dim"}


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
    """Print plain text in lines of at most 80 columns; long names and paths stay whole."""
    from dataporter.layout import wrapped_lines

    text = "\n".join(map(wrapped_lines, words.split("\n")))
    console.print(Text(text, style=_STYLES.get(style, "")))


def print_parts(console: Console, parts: Sequence[Any]) -> None:
    """Print the parts of a report, with an empty line between them."""
    from dataporter.tools.report import as_lines

    is_first = True
    for part in parts:
        lines = list(as_lines(part))
        if lines and not is_first:
            console.print()
        for line, style in lines:
            console.print(Text(line, style=_STYLES.get(style, "")))
        is_first = is_first and not lines


def print_json(found: Any) -> None:
    """Print builtins for machines."""
    typer.echo(json.dumps(found, indent=2))


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


def check_folder(folder: Path) -> None:
    """Raise before minutes of work if a folder cannot be made or written to.

    The folder is made, written to and removed again, since permissions alone do not tell.
    """
    whole = folder.absolute()
    made = [path for path in (whole, *whole.parents) if not os.path.lexists(path)]
    try:
        whole.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=whole, prefix=".dataporter."):
            pass
    except OSError as error:
        msg = f"{folder} cannot be written to: {error.strerror}. Name another folder."
        raise OptionError(msg) from error
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def check_picture(path: Path, suffixes: Sequence[str]) -> None:
    """Raise before minutes of work if a picture or page cannot be drawn or written."""
    if path.suffix.lower() not in suffixes:
        names = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        msg = f"--out must be a file {names}, found {str(path)!r}."
        raise OptionError(msg)
    from dataporter.tools.pictures import check_matplotlib

    check_matplotlib()
    check_file(path)


def check_file(path: Path) -> None:
    """Raise before minutes of work if a file cannot be written. Its folder must exist."""
    # A device, for example, must not be replaced by a file.
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        msg = f"{path} cannot be written: name a file in a folder that exists and can be written."
        raise OptionError(msg)
    check_folder(path.parent)


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a file under a temporary name, then rename it. Make its folder if needed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(contents.encode() if isinstance(contents, str) else contents)
        temporary.replace(path)
    except OSError as error:  # a full disk, for example
        msg = f"{path} cannot be written: {error.strerror}. Name a file elsewhere."
        raise OptionError(msg) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
