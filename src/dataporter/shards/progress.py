"""Progress of a scan: a bar where a terminal can show it, else a line in the log now and then."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_EVERY = 10.0  # seconds between lines in the log

_log = logging.getLogger(__name__)

Item = TypeVar("Item")


def progress_of(items: Iterable[Item], total: int, is_shown: bool) -> Iterator[Item]:
    """Yield the items, and say how many of them have come."""
    if is_shown and total and sys.stderr.isatty():
        try:
            return _with_bar(items, total)
        except ImportError:  # rich is an extra
            pass
    return _with_log(items, total)


def _with_bar(items: Iterable[Item], total: int) -> Iterator[Item]:
    from rich.console import Console  # noqa: PLC0415  an extra
    from rich.progress import track  # noqa: PLC0415

    return iter(
        track(
            items,
            f"indexing {total:,} files",
            total=total,
            console=Console(stderr=True),
            transient=True,
        )
    )


def _with_log(items: Iterable[Item], total: int) -> Iterator[Item]:
    last = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= _EVERY:
            _log.info("indexed %s of %s files", f"{count:,}", f"{total:,}")
            last = now
