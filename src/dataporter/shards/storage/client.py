"""The calls that a library for storages answers, without tries, bounds or a cache."""

from __future__ import annotations

from typing import Protocol

from dataporter.shards.storage.stored import Stored


class Client(Protocol):
    """A library's way to one place. Its calls raise the errors of that library."""

    async def list(self, prefix: str) -> list[Stored]:
        """Return every file below a prefix, in any order."""

    async def find(self, path: str) -> Stored:
        """Return what is known of one file."""

    async def get(self, file: Stored, start: int, stop: int) -> memoryview:
        """Return bytes of a file, or raise `Changed` if it is not the file that was listed."""

    def renew(self) -> None:
        """Read credentials again. Later calls use them."""

    async def close(self) -> None:
        """Release connections."""
