"""Secrets taken out of texts of libraries: the values of options, logins and queries of URLs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dataporter.shards.storage.options import StorageOptions

_LOGIN = re.compile(r"(\w://)[^/\s@]*@")
_QUERY = re.compile(r"\?\S+")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|SAS")  # in names of the environment
_LEAST = 6  # characters of a value: a shorter one is part of many words
_LONGEST = 200  # characters that are shown


def first_line(text: str, options: StorageOptions) -> str:
    r"""Return the first line of a text, without secrets.

    >>> options = StorageOptions(given={"token": "s3cret-1"})
    >>> first_line("no s3cret-1 at https://me:pw@example.com/a?signature=1\nmore", options)
    'no … at https://example.com/a'
    """
    line = text.strip().partition("\n")[0]
    line = _QUERY.sub("", _LOGIN.sub(r"\1", line))
    for value in sorted(_values(options), key=len, reverse=True):
        line = line.replace(value, "…")
    return line[:_LONGEST].rstrip(" .")


def _values(options: StorageOptions) -> set[str]:
    """Return all values that may be secret."""
    named = (value for name, value in os.environ.items() if _SECRET.search(name))
    return {value for value in (*named, *_strings(options.given)) if len(value) >= _LEAST}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from _strings(each)
