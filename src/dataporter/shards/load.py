"""The load of a porter: bytes that are fetched and decoded at a time, which lie in its memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Load:
    """A bound of bytes, which grows by all that was done, up to `most`.

    So the first bytes do not wait for many others. What is larger than the bound has it to itself.

    >>> load = Load(first=10, most=15)
    >>> with load.of(4), load.of(6):
    ...     load.bytes
    10
    >>> with load.of(15):
    ...     load.bytes
    15
    """

    def __init__(self, *, first: int, most: int) -> None:
        self._bound, self._most = first, most
        self.bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Wait until there is room for so many bytes, and hold them."""
        with self._changed:
            self._changed.wait_for(lambda: self.bytes + size <= self._bound or not self.bytes)
            self.bytes += size
        try:
            yield
        finally:
            with self._changed:
                self.bytes -= size
                self._bound = min(self._bound + size, self._most)
                self._changed.notify_all()
