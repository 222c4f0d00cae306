"""URLs as messages, indexes and states show them: without user names, passwords and queries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(name: str) -> bool:
    """Return True if a name of files is a URL.

    >>> is_url("s3://bucket/corpus"), is_url("/data/corpus"), is_url("c:/corpus")
    (True, False, False)
    """
    return bool(_URL.match(name))


@dataclass(frozen=True, slots=True)
class Url:
    """A place in a storage. It holds no secrets.

    >>> root = Url.of("https://user:password@example.com/corpus/?token=1")
    >>> str(root / "a/b.parquet")
    'https://example.com/corpus/a/b.parquet'
    """

    scheme: str
    place: str  # host or bucket, and the path in it, without "/" at its end

    @classmethod
    def of(cls, text: str) -> Url:
        """Take what may be shown of a URL."""
        parts = urlsplit(text.partition("#")[0])
        host = parts.netloc.rpartition("@")[2]
        return cls(parts.scheme, f"{host}{parts.path}".rstrip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}"

    def __truediv__(self, path: str) -> Url:
        return Url(self.scheme, f"{self.place}/{path}")
