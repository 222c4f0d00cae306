"""One request of a storage: tried again through faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dataporter.errors import ShardChangedError, ShardsNotFoundError, StorageError
from dataporter.shards.storage.client import Client
from dataporter.shards.storage.faults import Fault, Kind, fault_of
from dataporter.shards.storage.options import StorageOptions
from dataporter.shards.storage.stored import Stored
from dataporter.shards.storage.urls import Url

T = TypeVar("T")


class Requests:
    """The requests of one storage."""

    def __init__(self, client: Client, root: Url, options: StorageOptions) -> None:
        self._client = client
        self._root = root
        self._free = asyncio.Semaphore(options.max_requests)
        self.counters: Counter[str] = Counter()

    async def get(self, file: Stored, start: int, stop: int) -> memoryview:
        """Return bytes of a file."""
        name = f"bytes {start:,} to {stop:,} of {self._root / file.path}"
        data = await self._try(lambda: self._client.get(file, start, stop), name)
        self.counters["bytes"] += len(data)
        return data

    async def list(self, prefix: str) -> list[Stored]:
        """Return every file below a prefix."""
        return await self._try(lambda: self._client.list(prefix), f"the files of {self._root}")

    async def find(self, path: str) -> Stored:
        """Return what is known of one file."""
        return await self._try(lambda: self._client.find(path), str(self._root / path))

    async def _try(self, call: Callable[[], Awaitable[T]], name: str) -> T:
        async with self._free:
            self.counters["requests"] += 1
            try:
                return await call()
            except Exception as error:  # noqa: BLE001  libraries raise anything
                raise _error(fault_of(error), name) from None


def _error(fault: Fault, name: str) -> Exception:
    msg = f"a storage did not give {name}: {fault.words}."
    if fault.kind is Kind.ABSENT:
        return ShardsNotFoundError(msg)
    return ShardChangedError(msg) if fault.kind is Kind.CHANGED else StorageError(msg)
