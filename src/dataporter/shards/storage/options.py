"""How a storage is reached, and how much is asked of it. Nothing of this is kept or shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """Credentials, end points and bounds. Its text shows no credentials."""

    given: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as obstore or fsspec takes
    full_urls: Mapping[str, str] = field(default_factory=dict, repr=False)  # with queries, by path
    max_requests: int = 32  # at a time
    patience: float = 300.0  # seconds for which a request is tried again
