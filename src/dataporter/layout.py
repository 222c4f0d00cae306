"""Words laid out for people: plurals, text of 80 columns, and tables for notebooks.

What is shown may come from anybody: a state, an error of the user's code. So text has no letters
that a terminal would obey, and HTML is escaped. The HTML has no colours of its own, so that it
looks right in light and dark notebooks. Whole reports of a command are made in `tools/report.py`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape

WIDTH = 80  # columns
_LEFT = ' style="text-align: left"'  # notebooks align cells to the right

Row = tuple[str, str]  # a heading, and the words under it


def counted(number: int, thing: str) -> str:
    """Put a number and a thing together.

    >>> counted(1, "batch"), counted(2000, "batch")
    ('1 batch', '2,000 batches')
    """
    if number != 1:
        thing += "es" if thing.endswith("ch") else "s"
    return f"{number:,} {thing}"


def printable(text: str) -> str:
    """Replace letters that a terminal would obey instead of showing."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def wrapped(text: str, first: str = "", others: str = "  ", *, breaks_words: bool = True) -> str:
    """Wrap a paragraph; `first` and `others` begin its lines.

    The text may contain an error of the user's code, with line breaks of its own. Long names and
    paths stay whole if `breaks_words` is False.

    >>> print(wrapped("one thing " * 9, " - ", "   "))
     - one thing one thing one thing one thing one thing one thing one thing one
       thing one thing
    """
    return textwrap.fill(
        printable(" ".join(text.splitlines())),
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=breaks_words,
        break_on_hyphens=False,
    )


def wrapped_lines(text: str, width: int = WIDTH) -> str:
    """Wrap each line of a text. Names and paths stay whole, to be copied."""
    return "\n".join(
        textwrap.fill(printable(line), width, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def laid_out(rows: Sequence[Row], indent: str = "", *, breaks_words: bool = True) -> str:
    """Set rows in two columns of text. Long paths stay whole if `breaks_words` is False."""
    return "\n".join(laid_out_rows(rows, indent, breaks_words=breaks_words))


def laid_out_rows(
    rows: Sequence[Row], indent: str = "", *, breaks_words: bool = True
) -> Iterator[str]:
    """Yield the text of each row, which may have several lines."""
    edge = max(len(heading) for heading, _ in rows) + 2
    for heading, words in rows:
        yield textwrap.fill(
            printable(f"{heading:{edge}}{words}"),
            WIDTH,
            initial_indent=indent,
            subsequent_indent=indent + " " * edge,
            break_long_words=breaks_words,
            break_on_hyphens=False,
        )


def table(rows: Iterable[Sequence[object]], columns: Sequence[str] = ()) -> str:
    """Render rows as a table. The first cell of each row is its heading.

    >>> print(table([("fetch", "2 ms"), ("a < b", "4 ms")], columns=["stage", "mean"]))
    <table>
    <tr><th style="text-align: left">stage</th><th style="text-align: left">mean</th></tr>
    <tr><th style="text-align: left">fetch</th><td style="text-align: left">2 ms</td></tr>
    <tr><th style="text-align: left">a &lt; b</th><td style="text-align: left">4 ms</td></tr>
    </table>
    """
    lines = ["<table>"]
    if columns:
        lines.append(f"<tr>{''.join(_cell('th', name) for name in columns)}</tr>")
    for heading, *others in rows:
        cells = "".join(_cell("td", each) for each in others)
        lines.append(f"<tr>{_cell('th', heading)}{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def paragraphs(*texts: str) -> str:
    """Render each text as a paragraph. Empty ones are left out, line breaks do not count.

    >>> paragraphs("5 < 6", "")
    '<p>5 &lt; 6</p>'
    """
    return "\n".join(f"<p>{escape(text)}</p>" for text in texts if text)


def _cell(tag: str, content: object) -> str:
    return f"<{tag}{_LEFT}>{escape(str(content))}</{tag}>"
