"""Checks of required packages: installed, in a suitable version, with the names that are used."""

from __future__ import annotations

import contextlib
import re
from importlib import metadata
from typing import Any

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


def known_attribute(owner: Any, path: str, *, release: str, tried: tuple[str, str]) -> Any:
    """Return an attribute that a package does not promise to keep, by its dotted path.

    >>> known_attribute("text", "upper.later", release="python 9", tried=("3.10", "3.14"))
    Traceback (most recent call last):
        ...
    dataporter.errors.MissingExtraError: builtin_function_or_method of python 9 has no 'later'...
    """
    found = owner
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            kind = found if isinstance(found, type) else type(found)
            msg = f"{kind.__name__} of {release} has no {name!r}. {untried(tried)}"
            raise MissingExtraError(msg) from error
    return found


def untried(tried: tuple[str, str]) -> str:
    """Say which versions of a package work, and what to do with another one."""
    return (
        f"dataporter was tried with {tried[0]} to {tried[1]}. Install one of these versions, or a "
        "dataporter that knows the newer one."
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) for 2.13.0+cpu."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
