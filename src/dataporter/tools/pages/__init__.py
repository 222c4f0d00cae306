"""Pages to open in a browser: one file each, no script, no network, light and dark.

`templates/` holds the HTML. Values are escaped, except pictures, which `pictures.py` draws.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dataporter.tools.pages.pictures import check_matplotlib

__all__ = ["check_matplotlib", "render"]


def render(template: str, **values: Any) -> str:
    """Fill the template `NAME.html.jinja` with values."""
    environment = Environment(
        loader=PackageLoader("dataporter.tools.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(f"{template}.html.jinja").render(values)
