"""A loader that is not ours, interrupted as it is and started again: what it keeps, and loses.

A plain torch DataLoader has no state. So its order is drawn by two processes, without reading data,
and the same samples are read by two processes. A loader with a state, such as torchdata's, is saved
and loaded in a new process, with its own number of workers and with others.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dataporter.errors import FactoryError
from dataporter.layout import counted
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.fingerprint import dataset_length
from dataporter.sources.lanes import is_iterable
from dataporter.sources.users_sampler import has_state
from dataporter.tools.sandbox import (
    USUAL,
    Conditions,
    Problem,
    ProcessEndedError,
    Sandbox,
    TimeUpError,
)
from dataporter.tools.sandbox.factories import Description, Factory, described, make_loader
from dataporter.tools.units import duration
from dataporter.tools.verify.batch_contents import Contents, contents_of, difference
from dataporter.tools.verify.report import TIME_UP, Check

_SHARE = 0.35  # of the time that is left, for all runs
_RUNS = 8  # that share it, at most
_MOST_INDICES = 1_000_000  # that are drawn of an epoch
_LARGEST_SEED = 2**32  # that a user is likely to choose; torch draws its own from 2**53
_UNCOUNTED = -(2**62)  # an iterator with a state of its own is left as it is
_OTHER_ORDER = "another process draws another order"
_RIGHT_SAMPLES = ". The samples are the right ones, but their random numbers differ"
_OTHER_SAMPLES = ". Other samples come than without an interruption"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoader(Description):
    """A loader of torch or another library, described."""

    has_state: bool

    def __str__(self) -> str:
        size = "its own batches" if self.batch_size is None else f"batches of {self.batch_size}"
        return self.line(size, counted(self.num_workers, "worker"))


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
            random.seed()  # as in a new process of a script that seeds nothing
            np.random.seed()  # noqa: NPY002  the legacy generator is meant
            torch.seed()
        loader, _ = make_loader(factory, {})
        if isinstance(loader, ResumableDataLoader):
            return loader, None
        return loader, OtherLoader(**described(loader), has_state=has_state(loader))

    def use(self, loader: DataLoader[Any], _facts: OtherLoader | None) -> Restarted:
        """Deliver the batches."""
        found = Restarted()
        if not self.batches:
            return found
        context: Any = loader.multiprocessing_context or multiprocessing.get_context()
        fetched = context.Value("q", 0)  # shared with its workers
        is_counted = self._alter(loader, fetched)
        began = monotonic()
        if self.state is not None:
            restored: Any = loader
            restored.load_state_dict(pickle.loads(self.state))  # noqa: S301  ours
        for _ in range(self.passes):
            count = len(found.times)
            for batch in loader:
                self._note(loader, batch, found, monotonic() - began)
                if len(found.times) >= self.batches or monotonic() - began > self.seconds:
                    return found
            found.passes.append(len(found.times) - count)
        if is_counted and fetched.value >= 0:  # all that was fetched ahead has been delivered
            found.fetched = fetched.value
        return found

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


def describe(sandbox: Sandbox) -> OtherLoader | None:
    """Describe the loader that the factory makes; None for one of ours."""
    return sandbox.run(Restart())[0]


def find_losses(
    sandbox: Sandbox, loader: OtherLoader, batches: int, workers: Sequence[int] | None
) -> Iterator[Check]:
    """Interrupt a loader that is not ours; yield a check for each thing that it keeps or loses."""
    restarts = _Restarts(sandbox, loader, batches)
    try:
        if loader.has_state:
            yield from restarts.from_its_state(workers)
        elif loader.is_iterable:
            yield from restarts.from_the_start()
        else:
            yield from restarts.by_skipping()
    except (TimeUpError, ProcessEndedError) as error:
        reason = TIME_UP if isinstance(error, TimeUpError) else "a process ended"
        yield Check(name="the loader as it is", outcome="not run", words=reason)


class _Restarts:
    """Runs of one loader, each in a process of its own, within a share of the time."""

    def __init__(self, sandbox: Sandbox, loader: OtherLoader, batches: int) -> None:
        self._sandbox = sandbox
        self._deadline = monotonic() + sandbox.seconds_left * _SHARE
        self._seconds = sandbox.seconds_left * _SHARE / _RUNS
        self._loader = loader
        self._batches = batches

    def _run(self, *, is_first: bool = False, **options: Any) -> Restarted:
        """Run it once. All but the first run are in a process that has imported it anew."""
        if monotonic() > self._deadline:
            raise TimeUpError
        job = Restart(
            **{"seconds": self._seconds, **options},
            reseeds=bool(self._sandbox.why_not_importable) and not is_first,
        )
        _, found = self._sandbox.run(job, USUAL if is_first else Conditions(copy=1))
        return Restarted(problem=found) if isinstance(found, Problem) else found

    def _first(self, **options: Any) -> Restarted:
        """Run it as before an interruption; raise if it does not run, or ends at once."""
        found = self._run(is_first=True, **options)
        if found.problem is not None:
            found.problem.fail("the loader failed")
        if len(found.times) < 2:  # noqa: PLR2004  one before an interruption, one after it
            count = "a single batch" if found.times else "no batch"
            msg = (
                f"the loader over {self._loader.dataset} delivered {count}, so there is no resume "
                "to compare. Give it more data, or smaller batches."
            )
            raise FactoryError(msg)
        return found

    def by_skipping(self) -> Iterator[Check]:
        """Try a loader without a state over a dataset: its script skips batches."""
        size = self._loader.batch_size or 1
        epoch: dict[str, Any] = {
            "order": True,
            "num_workers": 0,
            "batches": max(_MOST_INDICES // size, 2),
        }
        one, other = self._first(**epoch), self._run(**epoch)
        if other.problem is not None:
            other.problem.fail("the loader failed")
        half = len(one.indices) // 2
        everything, before = _samples_of(one.indices), _samples_of(one.indices[:half])
        again = len(before & _samples_of(other.indices))
        yield _lost(
            "a state to resume from",
            f"it has none. Started again after {counted(half, 'batch')} of {len(one.indices):,}, "
            f"it begins the epoch anew: {counted(again, 'sample')} of {len(everything):,} come a "
            "second time",
        )
        name = f"the order, if {counted(half, 'batch')} are skipped"
        if one.indices == other.indices:
            yield _kept(name, len(one.indices), "the same in two processes")
        elif not one.passes or not other.passes:  # too long to be drawn as a whole
            yield _lost(name, _OTHER_ORDER)
        else:
            after = _samples_of(other.indices[half:])
            twice, never = len(before & after), len(everything - before - after)
            yield _lost(
                name,
                f"{_OTHER_ORDER}: {counted(twice, 'sample')} of {len(everything):,} come twice in "
                f"the epoch, {never:,} never",
            )
        read = tuple(one.indices[: self._batches])
        yield from self._after_skipping(half, indices=read)

    def from_the_start(self) -> Iterator[Check]:
        """Try a loader without a state over an iterable."""
        yield from self._after_skipping(0)

    def _after_skipping(self, half: int, **options: Any) -> Iterator[Check]:
        """Compare the batches after an interruption, with the present workers and one more.

        The batches before it are read again, as a script does that skips them.
        """
        first = self._first(batches=self._batches, **options)
        point = len(first.batches) // 2
        if self._loader.is_iterable:
            yield _lost(
                "a state to resume from",
                f"it has none. Started again after {counted(point, 'batch')}, it reads its data "
                "from the beginning",
            )
        own = self._loader.num_workers
        for workers in (own, own + 1):
            name = f"the samples after {counted(point, 'skipped batch')}"
            name += "" if workers == own else f", with {counted(workers, 'worker')}"
            found = self._run(batches=len(first.batches), num_workers=workers, **options)
            loss = _difference(first, found, point)
            if loss is not None:
                is_same = not self._loader.is_iterable and found.problem is None
                yield _lost(name, loss + _RIGHT_SAMPLES if is_same else loss)
                break
            yield _kept(name, len(first.batches) - point)
        spent = first.times[point - 1] if point else 0.0
        loss = f"{counted(point, 'batch')} were read for nothing in {duration(spent)}"
        if half > point:
            much = duration(spent * half / max(point, 1))
            loss += f"; at this speed, half an epoch ({half:,} batches) takes {much}"
        yield _lost("the time to skip batches", loss)

    def from_its_state(self, workers: Sequence[int] | None) -> Iterator[Check]:
        """Try a loader with a state: it is saved, and loaded in a new process."""
        own, every = self._loader.num_workers, tuple(range(1, self._batches))
        saved: dict[str, Any] = {"batches": self._batches, "passes": 2, "saves": every}
        first = self._first(**saved)
        order = None
        if not self._loader.is_iterable:
            order = self._run(is_first=True, order=True, **saved)
        middle = len(first.batches) // 2
        ends = [at for at in first.passes[:1] if at < len(first.batches)]
        tried = [(point, own) for point in dict.fromkeys([1, middle, *ends])]
        counts = sorted({0, 1, 2, own + 1}) if workers is None else workers
        tried += [(middle, count) for count in counts if count != own]
        waits: list[float] = []  # seconds until the first batch
        for point, count in tried:
            yield self._resumed(first, order, point, count, waits)
        yield self._read_again(first, order, middle, waits)

    def _resumed(
        self,
        first: Restarted,
        order: Restarted | None,
        point: int,
        workers: int,
        waits: list[float],
    ) -> Check:
        """Load the state that was saved at a point in a new process, and compare the rest."""
        name = f"after {counted(point, 'batch')}, with {counted(workers, 'worker')}"
        rest = len(first.batches) - point
        resumed: dict[str, Any] = {"passes": 2, "num_workers": workers}
        found = self._run(batches=rest, state=first.states[point], **resumed)
        waits += found.times[:1]
        loss = _difference(first, found, point, skipped=point)
        if loss is None:
            return _kept(name, rest)
        if found.problem is None and order is not None and point in order.states:
            rest, state = len(order.indices) - point, order.states[point]
            indices = self._run(order=True, batches=rest, state=state, **resumed).indices
            loss += _RIGHT_SAMPLES if indices == order.indices[point:] else _OTHER_SAMPLES
        return _lost(name, loss)

    def _read_again(
        self, first: Restarted, order: Restarted | None, point: int, waits: list[float]
    ) -> Check:
        """Count the samples that are fetched from a state to the end of an epoch, in vain."""
        name = f"the way to its state after {counted(point, 'batch')}"
        of = first if order is None else order
        rest: dict[str, Any] = {"batches": _MOST_INDICES, "passes": 1, "order": order is not None}
        found = self._run(state=of.states[point], **rest) if point in of.states else Restarted()
        if found.problem is not None or found.fetched is None:
            reason = "the samples that are read on the way cannot be counted"
            return Check(name=name, outcome="skipped", words=reason)
        size = self._loader.batch_size or 1
        delivered = sum(map(len, found.indices)) or sum(_size(each, size) for each in found.batches)
        again = found.fetched - delivered
        wait = ""
        if waits:
            wait = (
                f". The first batch came after {duration(median(waits))}, at the start of the run "
                f"after {duration(first.times[0])}"
            )
        if again <= 0:
            return _kept(name, 0, f"no sample is read again{wait}")
        loss = f"{counted(again, 'sample')} are read again to get there"
        if order is None:
            loss += f", since {self._loader.dataset} has no state; any loader has to"
        return _lost(name, loss + wait)


def _lost(name: str, words: str) -> Check:
    return Check(name=name, outcome="differs", words=words)


def _kept(name: str, batches: int, words: str = "") -> Check:
    return Check(name=name, outcome="exact", words=words, batches=batches)


def _samples_of(batches: Sequence[tuple[Any, ...]]) -> set[Any]:
    """Return the indices in some batches; a sampler's may be lists, which have no hash."""
    indices = chain.from_iterable(batches)
    return {each if isinstance(each, int) else repr(each) for each in indices}


def _size(batch: Contents, most: int) -> int:
    """Return the number of samples in a batch, as far as its tensors show it."""
    return min((leaf.shape[0] for leaf in batch.values() if leaf.shape), default=most)


def _difference(first: Restarted, found: Restarted, point: int, skipped: int = 0) -> str | None:
    """Describe how the batches after a point differ from an uninterrupted run; None if not."""
    if found.problem is not None:
        return f"it fails with {found.problem.message}".rstrip(": ")
    expected, others = first.batches[point:], found.batches[point - skipped :]
    differing = [
        (number, differs)
        for number, (one, other) in enumerate(zip(expected, others, strict=False), point + 1)
        if (differs := difference(one, other)) is not None
    ]
    if differing:
        number, differs = differing[0]
        place = f", at {differs.path}" if differs.path else ""
        return (
            f"{len(differing)} of {counted(len(expected), 'batch')} differ, the first is "
            f"batch {number}{place}: {differs.message}"
        )
    if len(others) < len(expected):
        return f"expected {counted(len(expected), 'batch')}, found {len(others)}"
    return None
