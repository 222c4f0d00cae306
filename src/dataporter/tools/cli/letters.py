"""Output on terminals and in pipes whose encoding lacks some of its letters."""

from __future__ import annotations

import codecs
import io
import sys

_PLAIN = {"µ": "u", "±": "+-", "█": "#"}  # where a question mark would hide what is meant
_ERRORS = "dataporter.plain"


def show_plainly() -> None:
    """Have what cannot be written written otherwise, instead of raising an error."""
    codecs.register_error(_ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in letters), error.end
