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
