"""Pictures by matplotlib: SVG inside a page, or a file, PNG or SVG.

A picture of a page is drawn twice, for narrow and for wide screens, so that its text stays readable
on both; the page's style shows one of them. Ink and grey differ between light and dark pages: they
are drawn in placeholder colours, which then become variables of the page's style.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from dataporter.errors import MissingExtraError

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#d55e00", "#e69f00", "#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#f0e442")

_NARROW, _WIDE = 350, 1100  # pixels
_PIXELS_PER_INCH = 72
_NARROW_INCHES = 6
_FONT_SIZE = 12  # pixels, on a screen as wide as the picture is drawn for
_TIP = "tip:"


@dataclass(frozen=True, slots=True)
class Greys:
    """Colours that depend on the paper."""

    ink: str
    soft: str
    pale: str
    line: str


_ON_PAGE = Greys("#010101", "#020202", "#030303", "#040404")  # placeholders
_ON_WHITE = Greys("#1b1f24", "#59636e", "#b6bec9", "#d1d9e0")
_VARIABLES = {getattr(_ON_PAGE, name): f"var(--{name})" for name in ("ink", "soft", "pale", "line")}

Draw: TypeAlias = Callable[["Figure", Greys], None]


def check_matplotlib() -> None:
    """Raise before minutes of work if pictures cannot be drawn after it."""
    if importlib.util.find_spec("matplotlib") is None:
        msg = 'matplotlib is not installed. Install it: pip install "torch-dataporter[cli]".'
        raise MissingExtraError(msg)


def picture(name: str, draw: Draw, height: int) -> Markup:
    """Draw a picture for a page; `height` is in pixels."""
    from markupsafe import Markup  # noqa: PLC0415  of an extra

    parts = (
        f'<div class="{on}">{_svg(name, draw, (width, height))}</div>'
        for on, width in (("narrow", _NARROW), ("wide", _WIDE))
    )
    return Markup("".join(parts))  # noqa: S704  matplotlib escapes all text


def png(draw: Draw, size: tuple[int, int]) -> bytes:
    """Draw a picture on white paper, as the contents of a PNG file."""
    return _saved(draw, size, _ON_WHITE, format="png", dpi=1.5 * _PIXELS_PER_INCH)


def svg(draw: Draw, size: tuple[int, int]) -> bytes:
    """Draw a picture on white paper, as the contents of an SVG file."""
    drawn = _saved(draw, size, _ON_WHITE, format="svg", metadata=_NO_METADATA)
    return _with_tips(drawn.decode()).encode()


def add_tip(artist: Any, text: str) -> None:
    """Show a text where the mouse points at a shape."""
    artist.set_gid(_TIP + text.replace('"', "'"))  # it becomes an attribute in quotes


def in_words(write: Callable[[float], str]) -> Any:
    """Make a formatter that writes the numbers of an axis as people do."""
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415  an extra, and slow to import

    return FuncFormatter(lambda value, _place: write(value) if value > 0 else "0")


def is_narrow(figure: Any) -> bool:
    """Tell whether a picture is for a narrow screen; of a part of one, too."""
    return bool(figure.bbox.width / figure.dpi < _NARROW_INCHES)


def _svg(name: str, draw: Draw, size: tuple[int, int]) -> str:
    drawn = _saved(draw, size, _ON_PAGE, format="svg", transparent=True, metadata=_NO_METADATA)
    text = drawn[drawn.index(b"<svg") :].decode()
    for placeholder, variable in _VARIABLES.items():
        text = text.replace(placeholder, variable)
    text = re.sub(r' (xmlns(:xlink)?|width|height|version)="[^"]*"', "", text, count=5)
    text = _with_tips(text)
    text = re.sub(r'<g id="[^"]*"/>', "", text)  # an empty group
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # names that all pictures share
    return text.replace("<svg", f'<svg role="img" aria-label="{name}"', 1)


def _with_tips(text: str) -> str:
    return re.sub(rf'<g id="{_TIP}([^"]*)">', r"<g><title>\1</title>", text)


_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def _saved(draw: Draw, size: tuple[int, int], greys: Greys, **options: Any) -> bytes:
    from matplotlib import rc_context  # noqa: PLC0415  an extra, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415  likewise

    style: Any = {
        "svg.fonttype": "none",  # text stays text
        "font.size": _FONT_SIZE,
        "axes.titlesize": _FONT_SIZE,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": greys.line,
        "axes.labelcolor": greys.soft,
        "text.color": greys.ink,
        "xtick.color": greys.soft,
        "ytick.color": greys.soft,
        "legend.frameon": False,
    }
    written = io.BytesIO()
    with rc_context(style):
        width, height = size
        figure = Figure((width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH), layout="constrained")
        draw(figure, greys)
        figure.savefig(written, **options)
    return written.getvalue()
