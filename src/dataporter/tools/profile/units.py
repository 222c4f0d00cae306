"""Durations, sizes, shares and rates, written with their units."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Write a time in the unit that fits it.

    >>> duration(0.00000321), duration(0.0482), duration(12.3456)
    ('3.2 µs', '48.2 ms', '12.3 s')
    """
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= least:
            return f"{_short(seconds / least)} {unit}"
    return f"{_short(seconds * 1e6)} µs"


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
    return f"{share:.0%}".replace("%", " %") if share >= 0.1 else f"{share:.1%}".replace("%", " %")  # noqa: PLR2004


def rate(per_second: float) -> str:
    """Write a number per second.

    >>> rate(4.251), rate(31.24), rate(12345.6)
    ('4.25', '31.2', '12,346')
    """
    if per_second >= 100:  # noqa: PLR2004  digits after the point say nothing then
        return f"{per_second:,.0f}"
    return f"{per_second:.1f}" if per_second >= 10 else f"{per_second:.2f}"  # noqa: PLR2004


def times(factor: float) -> str:
    """Write a factor.

    >>> times(12.34)
    '12 times'
    """
    return f"{factor:,.0f} times"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"  # noqa: PLR2004
