"""The findings of a command, in parts that are shown in three ways.

    as_lines      a terminal of 80 columns, and str(): each line with a style
    as_notebook   HTML for Jupyter, without colours of its own
    as_page       a file to open in a browser: no script, no network, light and dark

Pictures and images are on pages only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from dataporter.layout import WIDTH, Row, laid_out_rows, paragraphs, printable, table, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dataporter.tools.pictures import Greys

Style = Literal["", "good", "bad", "warning", "strong", "soft"]
Lines: TypeAlias = Iterator[tuple[str, Style]]

_SHOWN_TEXTS = 4  # of a row, on a terminal
_BAR = 40  # columns of a full bar


@dataclass(frozen=True, slots=True)
class Headline:
    """The outcome, in a sentence."""

    words: str
    style: Style = "strong"


@dataclass(frozen=True, slots=True)
class Words:
    """Paragraphs."""

    texts: Sequence[str]
    style: Style = ""
    has_paths: bool = False  # which stay whole on a terminal, to be copied


@dataclass(frozen=True, slots=True)
class Rows:
    """Headings, and the words under each; some headings have texts of the user's too."""

    rows: Sequence[Row]
    title: str = ""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under the names of columns. The first cell of a row is its name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    ends_with_text: bool = False  # the last column holds words, the others numbers
    styles: Mapping[int, Style] = field(default_factory=dict)  # of rows that stand out
    most: int | None = None  # rows on a terminal
    drops_columns: bool = False  # at the right, on a terminal, if there is no room for all


@dataclass(frozen=True, slots=True)
class Shares:
    """Names with a share of a whole each, drawn as bars on a terminal."""

    title: str
    rows: Sequence[tuple[str, float, str]]  # name, share, and the share in words


@dataclass(frozen=True, slots=True)
class Advice:
    """Things to do, the most important first: each with its reason."""

    title: str
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that matplotlib draws."""

    name: str
    draw: Callable[[Figure, Greys], None]
    height: int  # pixels
    title: str = ""
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Images:
    """Images of the data: the address of each, and the words under it."""

    title: str
    caption: str
    images: Sequence[tuple[str, str]]


Part: TypeAlias = Headline | Words | Rows | Table | Shares | Advice | Picture | Images


def as_text(parts: Sequence[Part]) -> str:
    """Show the parts in 80 columns.

    >>> print(as_text([Headline("EXACT"), Rows([("epoch", "3"), ("position", "12")])]))
    EXACT
    <BLANKLINE>
    epoch     3
    position  12
    """
    blocks = ["\n".join(line for line, _ in as_lines(part)) for part in parts]
    return "\n\n".join(filter(None, blocks))


def as_lines(part: Part) -> Lines:
    """Yield the lines of a part for a terminal, each with its style."""
    if isinstance(part, Headline):
        yield wrapped(part.words, breaks_words=False), part.style
    elif isinstance(part, Words):
        for text in part.texts:
            yield wrapped(text, breaks_words=not part.has_paths), part.style
    elif isinstance(part, Rows):
        yield from _lines_of_rows(part)
    elif isinstance(part, Table):
        yield from _lines_of_table(part)
    elif isinstance(part, Shares):
        yield part.title, ""
        for name, share, words in part.rows:
            yield f"  {name:>4} {words:>7}  {'█' * round(share * _BAR)}".rstrip(), ""
    elif isinstance(part, Advice):
        yield part.title, ""
        for number, (change, why) in enumerate(part.items, 1):
            yield wrapped(f"{change}: {why}", f" {number}. ", "    "), ""


def _lines_of_rows(part: Rows) -> Lines:
    if not part.rows:
        return
    for (heading, _), line in zip(part.rows, laid_out_rows(part.rows), strict=True):
        yield line, ""
        texts = part.texts.get(heading, ())
        yield from ((wrapped(repr(text), "    ", "    "), "") for text in texts[:_SHOWN_TEXTS])
        if (more := len(texts) - _SHOWN_TEXTS) > 0:
            yield f"    and {more:,} more", ""


def _lines_of_table(part: Table) -> Lines:
    shown = [[printable(str(cell)) for cell in row] for row in part.rows[: part.most]]
    columns = list(zip(part.columns, *shown, strict=True))
    names = [part.columns[0], *(f"  {row[0]}" for row in shown)]
    width = max(map(len, names))
    lines = [name.ljust(width) for name in names]
    for number, cells in enumerate(columns[1:], 2):
        width = max(map(len, cells))
        if part.drops_columns and len(lines[0]) + 2 + width > WIDTH:
            break
        is_text = part.ends_with_text and number == len(columns)
        added = [cell.ljust(width) if is_text else cell.rjust(width) for cell in cells]
        lines = [f"{line}  {cell}" for line, cell in zip(lines, added, strict=True)]
    for number, line in enumerate(lines, -1):
        yield line.rstrip(), part.styles.get(number, "")
    if part.most is not None and (more := len(part.rows) - part.most) > 0:
        yield f"  and {more:,} more", ""


def as_notebook(parts: Sequence[Part]) -> str:
    """Show the parts in a notebook."""
    return "\n".join(filter(None, map(_html_of, parts)))


def _html_of(part: Part) -> str:
    if isinstance(part, Headline):
        return paragraphs(part.words)
    if isinstance(part, Words):
        return paragraphs(*part.texts)
    if isinstance(part, Rows):
        return table(part.rows)
    if isinstance(part, Table):
        return table(part.rows, part.columns)
    if isinstance(part, Shares):
        return table([(name, words) for name, _, words in part.rows], [part.title, ""])
    if isinstance(part, Advice):
        return paragraphs(part.title, *(f"{change}: {why}" for change, why in part.items))
    return ""


def as_page(command: str, title: str, parts: Sequence[Part]) -> str:
    """Show the parts on a page; values are escaped, except pictures."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  of an extra

    from dataporter.tools.pictures import picture  # noqa: PLC0415  likewise

    environment = Environment(
        loader=PackageLoader("dataporter.tools"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def drawn(part: Picture) -> str:
        return picture(part.name, part.draw, part.height)

    kinds = [(type(part).__name__, part) for part in parts]
    template = environment.get_template("report.html.jinja")
    return template.render(command=command, title=title, parts=kinds, drawn=drawn)
