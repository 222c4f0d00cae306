"""The packages of the `shards` and `storage` extras, imported when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from dataporter.errors import MissingExtraError

_PACKAGES = {"shards": ("pyarrow", "zstandard"), "storage": ("obstore", "fsspec")}


def shards_extra() -> AbstractContextManager[None]:
    """Say how to install a package for files, if an import in this context lacks it."""
    return _extra("shards")


def storage_extra() -> AbstractContextManager[None]:
    """Say how to install a package for storages, if an import in this context lacks it."""
    return _extra("storage")


@contextmanager
def _extra(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES[name]:
            raise
        msg = f'{error.name} is not installed. Install it: pip install "torch-dataporter[{name}]".'
        raise MissingExtraError(msg) from error
