"""Shows the examples of docstrings as code: Markdown takes `>>>` for a quotation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

# From a prompt at the start of a line to the next line that is empty.
_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(Extension):
    """Puts a fence around each example of every docstring."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Called for each object when it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text of a docstring with its examples as blocks of code."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
