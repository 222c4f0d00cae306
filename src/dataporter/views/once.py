"""All samples of a dataset looked at once, in their order: by a loader of ours, with workers.

Workers may die, porters bring blocks ahead, and the look goes on from any sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from dataporter.law import Order
from dataporter.law.datasets import Asked
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.views.parts import order_of


class Look(ABC):
    """Values of a dataset's samples, as a dataset in the order that its storage has."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    def epoch_order(self, *, shuffle: bool, seed: int, step_size: int, world_size: int) -> Order:
        """Return the order of the data, whose blocks may have to be fetched."""
        return order_of(self.data, len(self), Asked(shuffle, seed, step_size, world_size))


def in_order(
    look: Look,
    start: int,
    *,
    batch_size: int,
    num_workers: int,
    collate_fn: Callable[[list[Any]], Any],
    context: str | None = None,
) -> Iterator[Any]:
    """Yield batches from a sample on. Each sample has the random numbers of seed 0 and epoch 0."""
    loader = _Loader(
        look,
        batch_size=batch_size,
        shuffle=False,
        seed=0,
        num_workers=num_workers,
        collate_fn=collate_fn,
        multiprocessing_context=context if num_workers else None,
        rank=0,  # this process looks at all of it
        world_size=1,
    )
    loader.seek(0, min(start, len(look)))
    yield from loader if start < len(look) else ()


class _Loader(ResumableDataLoader[Any]):
    """A loader of its own kind: tools that change the options of users' loaders leave it alone."""
