"""A file in a storage, as it is known before it is read."""

from __future__ import annotations

from typing import NamedTuple


class Stored(NamedTuple):
    """A file in a storage."""

    path: str  # relative to the root of the storage, divided by "/"
    size: int
    version: str  # its ETag, or what else tells that it was written again
