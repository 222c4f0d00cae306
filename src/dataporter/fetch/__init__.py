"""A task becomes a batch: gathered at once, by `__getitems__`, or sample by sample."""

from dataporter.fetch.collate import collate
from dataporter.fetch.fetcher import EMPTY, Failed, Fetcher, Skipped

__all__ = ["EMPTY", "Failed", "Fetcher", "Skipped", "collate"]
