"""The load of a porter: bytes that are fetched and decoded at a time, which lie in its memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Load:
    """A bound of bytes. What is larger than the bound has it to itself.

    >>> load = Load(10)
    >>> with load.of(4), load.of(6):
    ...     load.bytes
    10
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Wait until there is room for so many bytes, and hold them."""
        size = min(size, self._bound)
        with self._changed:
            self._changed.wait_for(lambda: self.bytes + size <= self._bound)
            self.bytes += size
        try:
            yield
        finally:
            with self._changed:
                self.bytes -= size
                self._changed.notify_all()
