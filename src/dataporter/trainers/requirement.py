"""What an integration needs to be installed, and the error that says so."""

from __future__ import annotations

import contextlib
import re
from importlib import metadata

from dataporter.errors import MissingExtraError


def require(*distributions: str, at_least: str, extra: str) -> None:
    """Check that one of some distributions is installed, in a version that will do.

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
    """Whether a distribution is installed, in a version between these.

    >>> has_version("torch", "2.6"), has_version("torch", "2.6", below="2.6.1")
    (True, False)
    """
    try:
        version = _numbers(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return False
    return _numbers(at_least) <= version and (below is None or version < _numbers(below))


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
