"""The time of day as Python code reads it: stopped, or moved to another time.

What measures durations (`time.monotonic`, `time.perf_counter`) is left to others. Classes stay
what they are, since C extensions such as pandas look into them: of `datetime.datetime` only the
two methods change that do not ask `time.time()`.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import gc
import time
from collections.abc import Callable
from typing import Any

# Nanoseconds. That is another year, month, weekday, hour, minute and second, odd or even; and the
# past, in which nothing has expired that is valid now.
LONG_AGO = ((400 * 24 + 5) * 60 + 17) * 60 * 10**9 + 43_210_987_654


def going_slow(by: int) -> Callable[[], int]:
    """A clock that goes on, but tells what the time was `by` nanoseconds ago."""
    true = time.time_ns
    return lambda: true() - by


def telling(now: Callable[[], int]) -> dict[str, Any]:
    """Functions to put in the place of those of module `time`, where `now` tells the time.

    >>> functions = telling(lambda: 86_400 * 10**9)
    >>> functions["time"](), functions["strftime"]("%d %B", functions["gmtime"]())
    (86400.0, '02 January')
    """
    gmtime, localtime, strftime = time.gmtime, time.localtime, time.strftime
    asctime, ctime = time.asctime, time.ctime

    def seconds() -> float:
        return now() / 10**9

    def at(given: float | None) -> float:
        return seconds() if given is None else given

    def moment(given: tuple[Any, ...] | None) -> Any:
        return localtime(seconds()) if given is None else given

    return {
        "time": seconds,
        "time_ns": now,
        "gmtime": lambda given=None: gmtime(at(given)),
        "localtime": lambda given=None: localtime(at(given)),
        "ctime": lambda given=None: ctime(at(given)),
        "asctime": lambda given=None: asctime(moment(given)),
        "strftime": lambda form, given=None: strftime(form, moment(given)),
    }


def tell_datetime(now: Callable[[], int]) -> None:
    """Have `datetime.datetime` take the time from `now`, in this process, from here on."""

    def told(cls: type[dt.datetime], tz: dt.tzinfo | None = None) -> dt.datetime:
        return cls.fromtimestamp(now() / 10**9, tz)

    def told_in_utc(cls: type[dt.datetime]) -> dt.datetime:
        return told(cls, dt.timezone.utc).replace(tzinfo=None)

    (methods,) = gc.get_referents(vars(dt.datetime))  # itself, where vars() is for reading only
    methods.update(now=classmethod(told), utcnow=classmethod(told_in_utc))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(dt.datetime))
