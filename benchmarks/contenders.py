"""Loaders that are compared: each delivers the batches of a dataset, shuffled, without an end.

Grain and SPDL take seconds to start their workers at each pass, so their passes never end. The
others keep their workers from pass to pass. All prefetch two batches per worker, as torch does.
The bare loop is their limit: it fetches and collates by hand, and its indices are ready.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import torch
from players import die_with_player
from torch.utils.data import DataLoader, IterableDataset, default_collate

from dataporter import __version__
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.stateful_dataloader import StatefulDataLoader

_AHEAD = 2  # batches a worker
_LISTED = 2**18  # indices that the bare loop keeps as lists

# Makes the batches of a dataset, given their size and the number of workers.
Batches = Callable[[Any, int, int], Iterator[Any]]


def installed() -> dict[str, str]:
    """Versions of the installed contenders.

    >>> sorted(installed())[:1]
    ['dataporter']
    """
    found = {}
    for name in CONTENDERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = _version(name)
    return found


def _version(name: str) -> str:
    known = {"dataporter": __version__, "torch": torch.__version__}
    return known.get(name) or metadata.version(name)


def bare_loop(dataset: Any, batch_size: int) -> Iterator[Any]:
    """Fetch and collate by hand, again and again."""
    if isinstance(dataset, IterableDataset):
        while True:
            samples = iter(dataset)
            while batch := list(itertools.islice(samples, batch_size)):
                yield default_collate(batch)
    order = torch.randperm(len(dataset))[:_LISTED]
    lists = [indices.tolist() for indices in order.split(batch_size)]
    while True:
        for indices in lists:
            yield default_collate([dataset[index] for index in indices])


def _torch(dataset: Any, batch_size: int, workers: int) -> Iterator[Any]:
    return _again_and_again(DataLoader(dataset, batch_size, **_options(dataset, workers)))


def _torchdata(dataset: Any, batch_size: int, workers: int) -> Iterator[Any]:
    from torchdata.stateful_dataloader import (  # noqa: PLC0415  may be missing
        StatefulDataLoader as Theirs,
    )

    return _again_and_again(Theirs(dataset, batch_size, **_options(dataset, workers)))


def _options(dataset: Any, workers: int) -> dict[str, Any]:
    return {
        "shuffle": not isinstance(dataset, IterableDataset),
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "worker_init_fn": die_with_player,
    }


def _dataporter(dataset: Any, batch_size: int, workers: int) -> Iterator[Any]:
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    if isinstance(dataset, IterableDataset):
        return _again_and_again(StatefulDataLoader(dataset, batch_size, **options))
    return _again_and_again(
        ResumableDataLoader(dataset, batch_size, shuffle=True, seed=1, **options)
    )


def _grain(dataset: Any, batch_size: int, workers: int) -> Iterator[Any]:
    from grain import python as grain  # noqa: PLC0415  likewise

    samples = grain.MapDataset.source(_Arrays(dataset)).shuffle(seed=1).repeat()
    ahead = grain.ReadOptions(prefetch_buffer_size=_AHEAD * batch_size)
    batches = samples.to_iter_dataset(ahead).batch(batch_size)
    options = grain.MultiprocessingOptions(num_workers=workers)
    for batch in batches.mp_prefetch(options):
        yield _tensors(batch)


def _spdl(dataset: Any, batch_size: int, workers: int) -> Iterator[Any]:
    from spdl.dataloader import get_pytorch_dataloader  # noqa: PLC0415  likewise

    loader = get_pytorch_dataloader(
        dataset,
        batch_size,
        sampler=_Endless(len(dataset)),
        num_workers=workers,
        prefetch_factor=_AHEAD,
    )
    yield from loader


CONTENDERS: dict[str, Batches] = {
    "torch": _torch,
    "torchdata": _torchdata,
    "grain": _grain,
    "spdl": _spdl,
    "dataporter": _dataporter,
}


def _again_and_again(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class _Endless:
    """All indices in another order in each epoch, epoch after epoch."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self._length).tolist()


class _Arrays:
    """A dataset whose tensors are NumPy arrays, which is what Grain puts into batches."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self._dataset[index]
        if isinstance(sample, dict):
            return {name: _array(value) for name, value in sample.items()}
        return _array(sample)


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _tensors(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: torch.from_numpy(value) for name, value in batch.items()}
    return torch.from_numpy(batch)
