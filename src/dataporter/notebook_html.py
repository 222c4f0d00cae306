"""HTML for notebooks: text and tables, with everything escaped.

Jupyter asks an object for `_repr_html_()`. The HTML has no colours of its own, so that it looks
right in light and dark notebooks, and needs no package. Whole pages are made in `tools/pages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_LEFT = ' style="text-align: left"'  # notebooks align cells to the right


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
