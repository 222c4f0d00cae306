"""Links to files of the repository, which the site does not have, become their names.

On a code host such a link leads to the file. One that leads nowhere is left as it is, and the
strict build refuses it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(docs) or not path.exists():
            return link[0]
        name = path.relative_to(docs.parent).as_posix()
        return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"

    return _LINK.sub(named, markdown)
