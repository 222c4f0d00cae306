"""The calls that a library for storages answers, without tries, bounds or a cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from dataporter.shards.storage.stored import Stored


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
