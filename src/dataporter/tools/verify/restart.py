"""One run of a loader that is not ours, as it is: from its start, or from its own state."""

from __future__ import annotations

import multiprocessing
import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.fingerprint import dataset_length
from dataporter.sources.lanes import is_iterable
from dataporter.sources.users_sampler import has_state
from dataporter.tools.sandbox import Problem
from dataporter.tools.sandbox.factories import Factory
from dataporter.tools.sandbox.loaders import make_loader
from dataporter.tools.verify.batch_contents import Contents, contents_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoader:
    """A loader of torch or another library, described."""

    name: str
    dataset: str
    samples: int | None
    batch_size: int | None
    num_workers: int
    is_iterable: bool
    has_state: bool

    def __str__(self) -> str:
        size = "its own batches" if self.batch_size is None else f"batches of {self.batch_size}"
        parts = [
            f"{self.name} over {self.dataset}",
            "" if self.samples is None else f"{self.samples:,} samples",
            size,
            f"{self.num_workers} worker{'' if self.num_workers == 1 else 's'}",
        ]
        return ", ".join(part for part in parts if part)


@dataclass(slots=True, kw_only=True)
class Restarted:
    """All that a run of such a loader has delivered."""

    batches: list[Contents] = field(default_factory=list)
    indices: list[tuple[Any, ...]] = field(default_factory=list)  # instead, if only these are read
    states: dict[int, bytes] = field(default_factory=dict)  # by the number of batches before
    passes: list[int] = field(default_factory=list)  # batches of each whole pass
    times: list[float] = field(default_factory=list)  # seconds until each batch
    fetched: int | None = None  # samples, if that can be counted
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A job for the sandbox: make the loader, load its state if there is one, deliver batches.

    With `order`, indices are delivered in place of samples, and no data is read.
    """

    batches: int = 0
    seconds: float = 60.0
    passes: int = 1
    order: bool = False
    indices: tuple[tuple[Any, ...], ...] | None = None  # of each batch, in place of the sampler's
    state: bytes | None = None
    saves: tuple[int, ...] = ()  # keep the state after so many batches
    num_workers: int | None = None  # None: the loader's own
    reseeds: bool = False  # a fork of the user's process, in place of a new one

    def make(self, factory: Factory) -> tuple[DataLoader[Any], OtherLoader | None]:
        """Make the loader; describe it, unless it is one of ours."""
        if self.reseeds and torch.initial_seed() > _LARGEST_SEED:
            _seed_anew()
        loader, _ = make_loader(factory, {})
        if isinstance(loader, ResumableDataLoader):
            return loader, None
        dataset = loader.dataset
        return loader, OtherLoader(
            name=f"{type(loader).__module__.split('.')[0]}'s {type(loader).__name__}",
            dataset=type(dataset).__name__,
            samples=None if is_iterable(dataset) else dataset_length(dataset),
            batch_size=loader.batch_size,
            num_workers=loader.num_workers,
            is_iterable=is_iterable(dataset),
            has_state=has_state(loader),
        )

    def use(self, loader: DataLoader[Any], _facts: OtherLoader | None) -> Restarted:
        """Deliver the batches."""
        found = Restarted()
        try:
            if self.batches:
                self._deliver(loader, found)
        except BaseException as error:  # noqa: BLE001  a dataset can raise anything
            found.problem = Problem.of(error)
        return found

    def _deliver(self, loader: Any, found: Restarted) -> None:
        context = loader.multiprocessing_context or multiprocessing.get_context()
        fetched = context.Value("q", 0)  # shared with its workers
        is_counted = self._alter(loader, fetched)
        began = monotonic()
        if self.state is not None:
            loader.load_state_dict(pickle.loads(self.state))  # noqa: S301  ours
        for _ in range(self.passes):
            count = len(found.times)
            for batch in loader:
                self._note(loader, batch, found, monotonic() - began)
                if len(found.times) >= self.batches or monotonic() - began > self.seconds:
                    return
            found.passes.append(len(found.times) - count)
        if is_counted and fetched.value >= 0:  # all that was fetched ahead has been delivered
            found.fetched = fetched.value

    def _note(self, loader: Any, batch: Any, found: Restarted, seconds: float) -> None:
        found.times.append(seconds)
        if self.order:
            found.indices.append(batch)
        else:
            found.batches.append(contents_of(batch))
        if len(found.times) in self.saves:
            found.states[len(found.times)] = pickle.dumps(loader.state_dict())

    def _alter(self, loader: Any, fetched: Any) -> bool:
        """Change the loader for this run; tell whether its fetches are counted."""
        changes: dict[str, Any] = {"pin_memory": False, "in_order": True}
        if self.num_workers is not None and self.num_workers != loader.num_workers:
            changes |= {
                "num_workers": self.num_workers,
                "prefetch_factor": 2 if self.num_workers else None,
                "persistent_workers": False,
                "timeout": loader.timeout if self.num_workers else 0,
            }
        if self.order:
            changes |= {
                "dataset": _Indices(dataset_length(loader.dataset) or 0, fetched),
                "collate_fn": _as_tuple,
                "worker_init_fn": None,
            }
        elif is_iterable(loader.dataset) and not has_state(loader.dataset):
            changes["dataset"] = _Counted(loader.dataset, fetched)
        if self.indices is not None:
            if loader.batch_sampler is None:
                changes["sampler"] = [index for (index,) in self.indices]
            else:
                changes["batch_sampler"] = [list(each) for each in self.indices]
        for name, value in changes.items():
            object.__setattr__(loader, name, value)  # torch forbids most of these, to protect users
        return "dataset" in changes


_LARGEST_SEED = 2**32  # that a user is likely to choose; torch draws its own from 2**53


def _seed_anew() -> None:
    """Seed the global generators as in a new process of a script that seeds nothing."""
    random.seed()
    np.random.seed()  # noqa: NPY002  the legacy generator is meant
    torch.seed()


_UNCOUNTED = -(2**62)  # an iterator with a state of its own is left as it is


class _Indices(Dataset[int]):
    """A dataset in which each index is its own sample."""

    def __init__(self, length: int, fetched: Any) -> None:
        self._length = length
        self._fetched = fetched

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        with self._fetched.get_lock():
            self._fetched.value += 1
        return index


class _Counted(IterableDataset[Any]):
    """An iterable without a state whose samples are counted."""

    def __init__(self, dataset: Any, fetched: Any) -> None:
        self.__dict__ |= {"_dataset": dataset, "_fetched": fetched}

    def __iter__(self) -> Iterator[Any]:
        samples: Iterator[Any] = iter(self._dataset)
        if not has_state(samples):
            return self._count(samples)
        self._fetched.value = _UNCOUNTED
        return samples

    def _count(self, samples: Iterator[Any]) -> Iterator[Any]:
        for sample in samples:
            with self._fetched.get_lock():
                self._fetched.value += 1
            yield sample

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)  # as worker_init_fn may do


def _as_tuple(indices: Any) -> tuple[Any, ...]:
    """Collate indices; those in tensors and arrays become numbers, which can be compared."""
    several = indices if isinstance(indices, list) else [indices]
    return tuple(each.item() if hasattr(each, "item") else each for each in several)
