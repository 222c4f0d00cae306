"""Durations, sizes, shares and rates with their units: written, and read as people write them."""

from __future__ import annotations

import math
import re

from dataporter.errors import OptionError

_MINUTES, _HOURS = 120, 7200  # seconds from which on other units are used
_BYTES = {"": 1.0, "B": 1.0}
for _power, _letter in enumerate("KMGTP", start=1):
    _BYTES |= {f"{_letter}B": 1000.0**_power, _letter: 1000.0**_power}
    _BYTES |= {f"{_letter}IB": 1024.0**_power}
_SECONDS = {"": 1.0, "S": 1.0, "MS": 1e-3, "US": 1e-6}


def duration(seconds: float) -> str:
    """Write a time in the unit that fits it.

    >>> duration(0.00000321), duration(0.0482), duration(12.3456)
    ('3.2 µs', '48.2 ms', '12.3 s')
    """
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= least:
            return f"{_short(seconds / least)} {unit}"
    return f"{_short(seconds * 1e6)} µs"


def long_duration(seconds: float) -> str:
    """Write a time that may be hours.

    >>> long_duration(0.5), long_duration(150), long_duration(90_000)
    ('500 ms', '2.5 minutes', '25.0 hours')
    """
    if seconds >= _HOURS:
        return f"{seconds / 3600:,.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= _MINUTES else duration(seconds)


def size(count: float) -> str:
    """Write a number of bytes.

    >>> size(812), size(38_535_168)
    ('812 B', '38.5 MB')
    """
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{_short(count / least)} {unit}"
    return f"{count:.0f} B"


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.583), percent(0.0123)
    ('58 %', '1.2 %')
    """
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"  # noqa: PLR2004


def rate(per_second: float) -> str:
    """Write a number per second.

    >>> rate(4.251), rate(31.24), rate(12345.6)
    ('4.25', '31.2', '12,346')
    """
    if per_second >= 100:  # noqa: PLR2004  digits after the point say nothing then
        return f"{per_second:,.0f}"
    return f"{per_second:.1f}" if per_second >= 10 else f"{per_second:.2f}"  # noqa: PLR2004


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"  # noqa: PLR2004


def read_bytes(name: str, text: str) -> int:
    """Read a number of bytes.

    >>> read_bytes("--cache", "200GB"), read_bytes("--cache", "1.5 MiB")
    (200000000000, 1572864)
    """
    return int(_read(name, text, _BYTES, "bytes, such as 200GB or 512MiB"))


def read_seconds(name: str, text: str) -> float:
    """Read a time.

    >>> read_seconds("--latency", "30ms"), read_seconds("--latency", "1.5s")
    (0.03, 1.5)
    """
    return _read(name, text, _SECONDS, "a time, such as 30ms or 0.5s")


def _read(name: str, text: str, units: dict[str, float], expected: str) -> float:
    found = re.fullmatch(r"\s*([\d_]*\.?\d+(?:e\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    factor = units.get(found[2].upper()) if found else None
    if found is None or factor is None:
        msg = f"{name} must be {expected}, found {text!r}."
        raise OptionError(msg)
    value = float(found[1]) * factor
    if not math.isfinite(value):
        msg = f"{name} must be {expected}, found {text!r}, which is too large."
        raise OptionError(msg)
    return value
