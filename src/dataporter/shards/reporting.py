"""Reports of a porter on its work: lines of its log, now and then, from its counters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from dataporter.layout import counted

_EVERY = 10.0  # seconds between two summaries
_SOON = 1.0  # seconds that somebody waits before the log says so

_log = logging.getLogger(__name__)


class Reporter(threading.Thread):
    """Logs what was done since the last time, and what others wait for.

    `statistics` are the counters. `waiting` says for how many blocks others wait and for how long,
    and `tell` sends a line to one of those who wait.
    """

    def __init__(
        self,
        place: str,
        statistics: Callable[[], Mapping[str, int]],
        waiting: Callable[[], tuple[int, float]],
        tell: Callable[[int, str], None],
    ) -> None:
        super().__init__(name="dataporter report", daemon=True)
        self._place = place
        self._statistics, self._waiting, self._tell = statistics, waiting, tell

    def run(self) -> None:
        before: Mapping[str, int] = {}
        last = time.monotonic() - _EVERY  # the first summary comes soon
        while True:
            time.sleep(_SOON)
            now = self._statistics()
            blocks, seconds = self._waiting()
            if seconds >= _SOON:
                so_far = f"{counted(now['decoded'], 'block')} so far, {_megabytes(now['bytes'])}"
                text = f"waiting for {counted(blocks, 'block')} from {self._place}: {so_far}"
                self._tell(logging.INFO, text)
            if time.monotonic() - last >= _EVERY:
                if text := summary(self._place, before, now):
                    _log.info("%s", text)
                before, last = now, time.monotonic()


def summary(place: str, before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Say in a line what was done between two counts; nothing if that is nothing.

    >>> before = {"decoded": 2, "bytes": 10_000_000}
    >>> now = {"decoded": 5, "bytes": 34_000_000, "waits": 1, "waited_ms": 1200, "evicted": 2}
    >>> summary("s3://bucket/corpus", before, now)
    's3://bucket/corpus: brought 3 blocks (24.0 MB), waited for 1 block (1.2 s), evicted 2 blocks'
    """
    done = {name: now[name] - before.get(name, 0) for name in now}
    parts = []
    if done.get("decoded"):
        parts.append(f"brought {counted(done['decoded'], 'block')} ({_megabytes(done['bytes'])})")
    if done.get("requests"):
        fetched = f"{counted(done['requests'], 'request')}, {_megabytes(done['fetched'])}"
        parts.append(f"fetched by {fetched}")
    if done.get("retries"):
        parts.append(f"tried {counted(done['retries'], 'request')} again")
    if done.get("waits"):
        waited = f"{done['waited_ms'] / 1000:.1f} s"
        parts.append(f"waited for {counted(done['waits'], 'block')} ({waited})")
    if done.get("evicted"):
        parts.append(f"evicted {counted(done['evicted'], 'block')}")
    return f"{place}: {', '.join(parts)}" if parts else ""


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
