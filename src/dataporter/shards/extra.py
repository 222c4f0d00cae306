"""The packages of the `shards` extra, imported when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dataporter.errors import MissingExtraError

_PACKAGES = ("pyarrow", "zstandard")


@contextmanager
def shards_extra() -> Iterator[None]:
    """Say how to install a package of the extra, if an import in this context lacks it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        msg = f'{error.name} is not installed. Install it: pip install "torch-dataporter[shards]".'
        raise MissingExtraError(msg) from error
