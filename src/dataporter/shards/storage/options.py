"""How a storage is reached, and how much is asked of it. Nothing of this is kept or shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
