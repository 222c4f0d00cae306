"""A task becomes a batch: gathered at once, by `__getitems__`, or sample by sample."""

from dataporter.fetch.collate import collate
from dataporter.fetch.fetcher import (
    EMPTY,
    Failed,
    Fetcher,
    Fetches,
    Late,
    Partial,
    Skipped,
    conversion_of,
    draws_nothing,
    getitems_of,
)

__all__ = [
    "EMPTY",
    "Failed",
    "Fetcher",
    "Fetches",
    "Late",
    "Partial",
    "Skipped",
    "collate",
    "conversion_of",
    "draws_nothing",
    "getitems_of",
]
