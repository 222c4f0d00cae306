"""Text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap

from dataporter.law.explanation import WIDTH, printable


def wrapped(text: str, first: str = "", others: str = "  ") -> str:
    """Wrap a paragraph; `first` and `others` begin its lines.

    The text may contain an error of the user's code, with line breaks of its own.

    >>> print(wrapped("one thing " * 9, " - ", "   "))
     - one thing one thing one thing one thing one thing one thing one thing one
       thing one thing
    """
    return textwrap.fill(
        printable(" ".join(text.splitlines())),
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
    )


def wrap(text: str, width: int = WIDTH, *, breaks_words: bool = False) -> str:
    """Wrap each line of a text. Names and paths stay whole by default, to be copied."""
    return "\n".join(
        textwrap.fill(printable(line), width, break_long_words=breaks_words, break_on_hyphens=False)
        for line in text.splitlines()
    )
