"""HTML as a notebook gets it, read back."""

from typing import Any
from xml.etree import ElementTree as ET


def parsed(shown: Any) -> ET.Element:
    """The HTML of something, which is well-formed and leaves colours to the notebook."""
    html = shown._repr_html_()
    assert "color" not in html
    assert "<script" not in html
    return ET.fromstring(f"<div>{html}</div>")  # noqa: S314  our own


def cells(shown: Any) -> list[list[str]]:
    """The rows of all tables."""
    return [["".join(cell.itertext()) for cell in row] for row in parsed(shown).iter("tr")]


def words(shown: Any) -> list[str]:
    return "".join(parsed(shown).itertext()).split()
