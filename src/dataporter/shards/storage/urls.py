"""URLs as messages, indexes and states show them: without user names, passwords and queries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WEB = frozenset({"http", "https"})

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# Elsewhere than on the web a "?" may be part of a glob or of a name.
_WEB_QUERY = re.compile(r"[?#].*", re.DOTALL)
_QUERY = re.compile(r"\?[\w.-]+=.*", re.DOTALL)
_CONTAINER = frozenset({"abfs", "abfss"})  # container@account.dfs.core.windows.net


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
    >>> str(Url.of("s3://bucket/part-?.parquet"))
    's3://bucket/part-?.parquet'
    """

    scheme: str
    place: str  # host or bucket, and the path in it, without "/" at its end

    @classmethod
    def of(cls, text: str) -> Url:
        """Take what may be shown of a URL."""
        scheme, _, rest = text.partition("://")
        scheme = scheme.lower()
        rest = (_WEB_QUERY if scheme in WEB else _QUERY).sub("", rest)
        host, slash, path = rest.partition("/")
        login, _, server = host.rpartition("@")
        if scheme not in _CONTAINER or ":" in login:
            host = server
        return cls(scheme, f"{host}{slash}{path}".rstrip("/"))

    @staticmethod
    def has_query(text: str) -> bool:
        """Return True if a URL has a query, which may be secret.

        >>> Url.has_query("s3://bucket/a?token=1"), Url.has_query("s3://bucket/a?.parquet")
        (True, False)
        """
        return bool(_QUERY.search(text))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}"

    def __truediv__(self, path: str) -> Url:
        return Url(self.scheme, f"{self.place}/{path}")


def urls_with_secrets(names: Iterable[str]) -> dict[str, str]:
    """Return the whole URLs of those that have a query or a user name, by their places.

    >>> urls_with_secrets(["https://example.com/a.tar?token=1", "https://example.com/b.tar"])
    {'example.com/a.tar': 'https://example.com/a.tar?token=1'}
    """
    urls = {name: Url.of(name) for name in names}
    return {url.place: name for name, url in urls.items() if _shown(name) != str(url)}


def _shown(name: str) -> str:
    scheme, divider, rest = name.partition("#")[0].rstrip("/").partition("://")
    return f"{scheme.lower()}{divider}{rest}"
