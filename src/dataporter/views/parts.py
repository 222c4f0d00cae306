"""The datasets that a view is made of: their orders, their samples, what these are made from.

All samples of a dataset are looked at once, in their order, by a loader of ours: workers may die,
porters bring blocks ahead, and the look goes on from any sample.
"""

from __future__ import annotations

import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from dataporter.fetch.fetcher import getitems_of
from dataporter.law import Order, OrderedDataset, SequentialOrder, ShuffledOrder
from dataporter.law.datasets import Asked, MadeFrom, declares_fingerprint
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.fingerprint import declared_fingerprint
from dataporter.views.code_hash import code_hash


def order_of(data: Any, length: int, asked: Asked) -> Order:
    """Return the order that a dataset has by itself."""
    if isinstance(data, OrderedDataset):
        return data.epoch_order(**asked._asdict())
    return plain_order(length, asked)


def plain_order(length: int, asked: Asked) -> Order:
    """Return the order of data that has none of its own."""
    return (ShuffledOrder if asked.shuffle else SequentialOrder)(length, asked.seed)


def read(data: Any, indices: Sequence[int]) -> Sequence[Any]:
    """Read samples of a dataset, at once if it can."""
    getitems = getitems_of(data)
    return [data[index] for index in indices] if getitems is None else getitems(indices)


# All samples looked at once, in their order


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


# What samples are made from


class Evidence(NamedTuple):
    """All that samples are made from. Where it is the same, results on them may be taken over."""

    data: str  # fingerprints, with size and time or ETag of files
    code: tuple[Any, ...]  # objects that make samples of the data
    datasets: tuple[Any, ...] = ()  # those that declare their fingerprints

    def code_hash(self) -> str:
        """Hash the code that makes samples; raise `UnknownCodeError` if some may change unseen."""
        return f"{code_hash(*self.code)} {code_hash(*self.datasets, is_data=True)}"


def evidence_of(data: Any) -> Evidence | None:
    """Return all that samples of a dataset are made from; None if that is not known.

    A fingerprint that is made of some of the contents will do to notice a mistake, but not to take
    results over: other data may have the same. So a dataset names its files, or declares one.
    """
    if isinstance(data, MadeFrom):
        fields = data.made_from()
        return None if fields is None else Evidence(*fields)
    if type(data) is Subset:
        chosen = np.asarray(data.indices, dtype="<i8").tobytes()
        return joined_evidence([data.dataset], hashlib.blake2b(chosen, digest_size=8).hexdigest())
    if type(data) is ConcatDataset:
        return joined_evidence(data.datasets, "one after the other")
    if declares_fingerprint(data):
        return Evidence(str(declared_fingerprint(data)), (), (data,))
    # A program that holds such a dataset has imported its package already.
    known = sys.modules.get("datasets")
    is_hugging_face = known is not None and type(data) is getattr(known, "Dataset", None)
    return _of_hugging_face(data) if is_hugging_face else None


def joined_evidence(datasets: Sequence[Any], name: str) -> Evidence | None:
    """Return what samples of a view are made from: of datasets, as `name` says."""
    parts = [evidence_of(each) for each in datasets]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    code, declared = (tuple(value for each in known for value in each[field]) for field in (1, 2))
    return Evidence(json.dumps([[each.data for each in known], name]), code, declared)


def _of_hugging_face(data: Any) -> Evidence | None:
    if _has_files_elsewhere(data):
        return None
    try:
        files = [Path(each["filename"]).stat() for each in data.cache_files]
    except OSError:
        return None
    sizes = [(each.st_size, each.st_mtime_ns) for each in files]
    return Evidence(f"{declared_fingerprint(data)} {sizes}", (type(data), data.format))


def _has_files_elsewhere(data: Any) -> bool:
    """Return True if columns hold paths of images or sounds, which are read with each sample."""
    for name, feature in data.features.items():
        kinds = str(feature)
        if not any(kind in kinds for kind in ("Image(", "Audio(", "Video(", "Pdf(", "Nifti(")):
            continue
        column = data.data.column(name)
        names = [field.name for field in column.type] if hasattr(column.type, "fields") else []
        if "bytes" not in names or any(chunk.field("bytes").null_count for chunk in column.chunks):
            return True
    return False
