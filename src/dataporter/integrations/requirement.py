"""What an integration needs to be installed, and the error that says so."""

from __future__ import annotations

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
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if _numbers(version) >= _numbers(at_least):
            return
        found.append(f"{name} {version}")
    msg = (
        f"{' or '.join(distributions)} {at_least} or newer is needed, found "
        f'{" and ".join(found) or "none"}. Install it: pip install "torch-dataporter[{extra}]".'
    )
    raise MissingExtraError(msg)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
