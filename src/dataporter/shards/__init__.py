"""Datasets that lie in many files: shuffled well, read by index, resumed by a seek.

`ShardedDataset` is a map-style dataset that brings an order of its own. `index` is the table of
all blocks, `tracks` the order, `formats/` read the files, `reading` opens blocks, and the porter
decodes the blocks that cannot be read by mmap.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataporter.shards.dataset import ShardedDataset

__all__ = ["ShardedDataset"]


def __getattr__(name: str) -> Any:
    """Import the dataset when it is first used: the porter process does without."""
    if name != "ShardedDataset":
        msg = f"module 'dataporter.shards' has no attribute {name!r}"
        raise AttributeError(msg)
    from dataporter.shards.extra import shards_extra  # noqa: PLC0415

    with shards_extra():
        from dataporter.shards.dataset import ShardedDataset  # noqa: PLC0415

    return ShardedDataset
