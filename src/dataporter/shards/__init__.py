"""Datasets that lie in many files: shuffled well, read by index, resumed by a seek.

`ShardedDataset` is a map-style dataset that brings an order of its own. `index` is the table of
all blocks, `formats/` read the files, `reading` opens blocks, and the porter decodes the blocks
that cannot be read by mmap. `law.tracks` has the order.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from dataporter.errors import MissingExtraError

if TYPE_CHECKING:
    from dataporter.shards.dataset import ShardedDataset

__all__ = ["ShardedDataset"]

_PACKAGES = {"shards": ("pyarrow", "zstandard"), "storage": ("obstore", "fsspec")}


def __getattr__(name: str) -> Any:
    """Import the dataset when it is first used: the porter process does without."""
    if name != "ShardedDataset":
        msg = f"module 'dataporter.shards' has no attribute {name!r}"
        raise AttributeError(msg)
    with shards_extra():
        from dataporter.shards.dataset import ShardedDataset  # noqa: PLC0415

    return ShardedDataset


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
