"""Links to files of the repository, which the site does not have, become their names.

On a code host such a link leads to the file. One that leads nowhere is left as it is, and the
strict build refuses it. A link to a script that is a paragraph of its own becomes its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_SCRIPT = re.compile(r"^\n\[[^\]]+\]\((\.\./[^)#\s]+\.py)\)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        path = (folder / link[1]).resolve()
        if not path.exists():
            return link[0]
        name = path.relative_to(docs.parent).as_posix()
        return f'\n```python title="{name}"\n{path.read_text(encoding="utf-8").rstrip()}\n```'

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(docs) or not path.exists():
            return link[0]
        name = path.relative_to(docs.parent).as_posix()
        return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"

    return _LINK.sub(named, _SCRIPT.sub(shown, markdown))
