"""Bytes and seconds as people write them: "200GB", "30ms"."""

from __future__ import annotations

import math
import re

from dataporter.errors import OptionError

_BYTES = {"": 1.0, "B": 1.0}
for _power, _letter in enumerate("KMGTP", start=1):
    _BYTES |= {f"{_letter}B": 1000.0**_power, _letter: 1000.0**_power}
    _BYTES |= {f"{_letter}IB": 1024.0**_power}
_SECONDS = {"": 1.0, "S": 1.0, "MS": 1e-3, "US": 1e-6}


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
