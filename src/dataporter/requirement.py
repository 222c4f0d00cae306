"""A check that a required package is installed in a suitable version."""

from __future__ import annotations

import contextlib
import re
from importlib import metadata

from dataporter.errors import MissingExtraError


def require(*distributions: str, at_least: str, extra: str) -> None:
    """Raise unless one of these distributions is installed, in version `at_least` or newer.

    >>> require("torch", at_least="2.6", extra="none")
    >>> require("torch", at_least="99", extra="future")
    Traceback (most recent call last):
        ...
    dataporter.errors.MissingExtraError: torch 99 or newer is needed, found ... Install it: pip \
install "torch-dataporter[future]".
    """
    found = []
    for name in distributions:
        if has_version(name, at_least):
            return
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    msg = (
        f"{' or '.join(distributions)} {at_least} or newer is needed, found "
        f'{" and ".join(found) or "none"}. Install it: pip install "torch-dataporter[{extra}]".'
    )
    raise MissingExtraError(msg)


def has_version(distribution: str, at_least: str, *, below: str | None = None) -> bool:
    """Return True if a distribution is installed in a version from `at_least` to below `below`.

    >>> has_version("torch", "2.6"), has_version("torch", "2.6", below="2.6.1")
    (True, False)
    """
    try:
        version = _numbers(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return False
    return _numbers(at_least) <= version and (below is None or version < _numbers(below))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) for 2.13.0+cpu."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
