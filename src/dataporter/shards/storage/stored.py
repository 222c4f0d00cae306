"""Files in a storage: their URLs without secrets, their versions, and the calls that give them.

Messages, indexes and states show URLs without user names, passwords and queries. Nothing of the
options is kept or shown.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

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


class Stored(NamedTuple):
    """A file in a storage."""

    path: str  # relative to the root of the storage, divided by "/"
    size: int
    version: str  # its ETag, or what else tells that it was written again


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """Credentials, end points and bounds. Its text shows no credentials."""

    given: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as obstore or fsspec takes
    full_urls: Mapping[str, str] = field(default_factory=dict, repr=False)  # with secrets, by place
    max_requests: int = 32  # at a time
    patience: float = 300.0  # seconds for which a request is tried again

    # Seconds. Tests shorten them.
    first_wait: float = 0.1  # before the second try, at most; doubled for each further one
    longest_wait: float = 10.0
    least_timeout: float = 10.0  # of one try
    least_delay: float = 0.5  # before a late request is sent a second time
    renewal: float = 30.0  # for which refused credentials are read again


class Client(Protocol):
    """A library's way to one place. Its calls raise the errors of that library."""

    def pages(self, prefix: str, after: str) -> AsyncIterator[list[Stored]]:
        """Return every file below a prefix, page by page, or those after a path in their order."""

    async def find(self, path: str) -> Stored:
        """Return what is known of one file."""

    async def get(self, file: Stored, start: int, stop: int) -> memoryview:
        """Return bytes of a file, or raise `ChangedError` if it is not the one that was listed."""

    def renew(self) -> None:
        """Read credentials again. Later calls use them."""

    async def close(self) -> None:
        """Release connections."""
