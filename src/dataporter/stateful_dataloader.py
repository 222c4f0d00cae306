"""torchdata's `StatefulDataLoader` and samplers, by name, signature and behaviour.

The loader is `ResumableDataLoader` with torchdata's defaults: it shares nothing among ranks
by itself, which is its samplers' business. Code written for torchdata runs with only its
import changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import DistributedSampler, Sampler

from dataporter.arguments import arguments_of
from dataporter.errors import (
    OptionError,
    OptionTypeError,
    StateFormatError,
    StateMismatchError,
)
from dataporter.law.lane_states import lanes_to_state
from dataporter.law.torchdata_state import TorchdataState, is_torchdata_state, read_torchdata_state
from dataporter.loader.options import LoaderOptions
from dataporter.ranks import Strategy
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.lanes.datapipes import is_datapipe
from dataporter.sources.lanes.fetcher import is_iterable
from dataporter.sources.source import Resumption
from dataporter.sources.torchdatas_sampler import GivenSampler, progress_of_sampler

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Stateful",
    "StatefulDataLoader",
    "StatefulDistributedSampler",
]

Sample_co = TypeVar("Sample_co", covariant=True)

_NEVER = 2**62  # steps between two snapshots


@runtime_checkable
class Stateful(Protocol):
    """Anything that can say where it stands, and be put back there."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class StatefulOptions(LoaderOptions[Sample_co]):
    """The arguments of a `StatefulDataLoader`: those of torchdata's, then dataporter's own."""

    shuffle: bool | None = None
    prefetch_factor: int | None = field(default=None, kw_only=True)
    persistent_workers: bool = field(default=False, kw_only=True)
    strategy: Strategy | None = field(default="simple", kw_only=True)
    snapshot_every_n_steps: int | None = field(default=1, kw_only=True)  # type: ignore[assignment]  # None: never

    def __post_init__(self) -> None:
        if self.snapshot_every_n_steps is None:
            object.__setattr__(self, "snapshot_every_n_steps", _NEVER)
        super(StatefulOptions, self).__post_init__()


class StatefulDataLoader(ResumableDataLoader[Sample_co]):
    """`ResumableDataLoader` with the signature and defaults of torchdata's StatefulDataLoader.

    With `snapshot_every_n_steps=None` no states are taken: a resume reads again from the start.

    >>> loader = StatefulDataLoader(range(6), batch_size=2)
    >>> batches = iter(loader)
    >>> next(batches).tolist()
    [0, 1]
    >>> state = loader.state_dict()
    >>> resumed = StatefulDataLoader(range(6), batch_size=2, num_workers=2)
    >>> resumed.load_state_dict(state)
    >>> [batch.tolist() for batch in resumed]
    [[2, 3], [4, 5]]
    """

    @arguments_of(StatefulOptions[Sample_co])
    def __init__(self, options: StatefulOptions[Sample_co]) -> None:
        if options.num_workers == 0 and options.prefetch_factor is not None:
            msg = (
                f"prefetch_factor={options.prefetch_factor} needs workers, found num_workers=0. "
                "Set one or the other."
            )
            raise OptionError(msg)
        changed: dict[str, Any] = {}
        if options.strategy == "simple" and is_datapipe(options.dataset):
            changed["strategy"] = None  # torchdata shares DataPipes among ranks, and nothing else
        super().__init__(**options.arguments(**changed))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class
        """Begin a pass; what goes wrong in `worker_init_fn` is raised here, as in torchdata."""
        batches: Any = super().__iter__()
        if self.worker_init_fn is not None and self.num_workers:
            batches.await_workers()
        return batches  # type: ignore[no-any-return]

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True
    ) -> None:
        """Make the next pass continue where `state_dict` was taken; {} for the start.

        A state that torchdata has saved is continued as well. Where that was shuffled, pass
        `sampler=RandomSampler(dataset)`, which shuffles as torchdata does.
        """
        if is_torchdata_state(state_dict):
            self._load_torchdata_state(read_torchdata_state(state_dict))  # type: ignore[arg-type]
        elif state_dict:
            super().load_state_dict(state_dict, strict)

    def _load_torchdata_state(self, found: TorchdataState) -> None:
        """Continue where a state of torchdata was taken."""
        if (found.lanes is not None) != self._source.has_lanes:
            msg = (
                "this state of torchdata was saved over another kind of dataset: an iterable or a "
                "dataset with a state on one side, neither on the other. Resume with the same."
            )
            raise StateMismatchError(msg)
        if is_iterable(self.dataset) or self.plan is not None:
            self._load_place(found)
        else:
            given = self._options.sampler, self._options.batch_sampler
            sampler = GivenSampler(
                given[0] if given[1] is None else given[1],
                yields_batches=given[1] is not None,
                batch_size=self.batch_size,
            )
            progress = progress_of_sampler(found, self._source, sampler)
            self._go_on(Resumption(progress._replace(lanes=found.lanes), self.seed))
        if found.lanes is not None and found.steps_since and not found.finished:
            self._read_and_drop(found.steps_since)

    def _load_place(self, found: TorchdataState) -> None:
        """Continue where a state of torchdata was taken, in an order without a sampler."""
        self._check_has_no_sampler(found)
        epoch = self._source.epoch_holder.epoch  # torchdata counts none: the user has told it
        steps = found.steps if found.lanes is not None else found.steps + found.steps_since
        samples, length = steps * (self.batch_size or 1), self._source.length
        changed: dict[str, Any] = {
            "epoch": epoch or 0,
            "samples_processed": samples if length is None else min(samples, length),
            "batches_processed": steps,
            "finished": found.finished,
        }
        if found.lanes is not None:
            changed["lanes"] = lanes_to_state(found.lanes)
        super().load_state_dict({**self.state_dict(), **changed})

    def _check_has_no_sampler(self, found: TorchdataState) -> None:
        """Refuse what torchdata says of a sampler where this loader has its own order."""
        if found.generator is not None or self._source.shuffle:
            msg = (
                "this state of torchdata was shuffled by torchdata's RandomSampler, or this "
                "loader shuffles and it did not. dataporter's own shuffle is another order: to "
                "continue, pass sampler=RandomSampler(dataset) of "
                "dataporter.stateful_dataloader."
            )
            raise StateMismatchError(msg)
        if found.sampler is not None or found.iterator is not None:
            msg = (
                "this state of torchdata has the state of a sampler, and this loader has an order "
                "of its own. Pass the sampler or batch_sampler that it was saved with."
            )
            raise StateMismatchError(msg)

    def _read_and_drop(self, steps: int) -> None:
        """Go on by so many batches, since nothing says where they lead to."""
        batches = iter(self)
        for _ in range(steps):
            next(batches, None)
        super().load_state_dict(self.state_dict())


class RandomSampler(Sampler[int]):
    """Shuffles, or draws with replacement; its iterators have a state.

    >>> sampler = RandomSampler(range(5), generator=torch.Generator().manual_seed(1))
    >>> drawing = iter(sampler)
    >>> seen = [next(drawing), next(drawing)]
    >>> state, rest = drawing.state_dict(), list(drawing)
    >>> again = iter(sampler)
    >>> again.load_state_dict(state)
    >>> list(again) == rest
    True
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if not isinstance(replacement, bool):
            msg = f"replacement must be a bool, found {type(replacement).__name__} {replacement!r}."
            raise OptionTypeError(msg)
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:
            msg = f"num_samples must be an int of at least 1, found {self.num_samples!r}."
            raise OptionError(msg)
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        self.generator = generator

    @property
    def num_samples(self) -> int:
        """The number of indices of a pass."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> _RandomIterator:
        return _RandomIterator(self)

    def __len__(self) -> int:
        return self.num_samples


class _RandomIterator(Iterator[int]):
    def __init__(self, sampler: RandomSampler) -> None:
        self._sampler = sampler
        self._begin()

    def _begin(self) -> None:
        self._start = self._sampler.generator.get_state()
        self._yielded = 0
        self._drawing = self._draw()

    def _draw(self) -> Iterator[int]:
        sampler, count = self._sampler, len(self._sampler.data_source)
        while True:
            if sampler.replacement:
                drawn = torch.randint(count, (32,), generator=sampler.generator)
            else:
                drawn = torch.randperm(count, generator=sampler.generator)
            yield from drawn.tolist()

    def __next__(self) -> int:
        if self._yielded == self._sampler.num_samples:
            raise StopIteration
        self._yielded += 1
        return next(self._drawing)

    def state_dict(self) -> dict[str, Any]:
        return {"yielded": self._yielded, "generator": self._start}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._sampler.generator.set_state(state_dict["generator"])
        self._begin()
        for _ in range(state_dict["yielded"]):
            next(self)


class BatchSampler(TorchBatchSampler):
    """torch's BatchSampler; its iterators have a state."""

    def __iter__(self) -> _BatchIterator:
        return _BatchIterator(self)


class _BatchIterator(Iterator[list[int]]):
    def __init__(self, batches: BatchSampler) -> None:
        self._batches = batches
        self._drawing = iter(batches.sampler)
        self._yielded = 0

    def __next__(self) -> list[int]:
        batch = list(itertools.islice(self._drawing, self._batches.batch_size))
        self._yielded += len(batch)
        if not batch or (self._batches.drop_last and len(batch) < self._batches.batch_size):
            raise StopIteration
        return batch

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"samples_yielded": self._yielded}
        parts = (("sampler_state", self._batches.sampler), ("sampler_iter_state", self._drawing))
        for name, part in parts:
            if isinstance(part, Stateful):
                state[name] = part.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        sampler: Any = self._batches.sampler
        if "sampler_state" in state_dict:
            sampler.load_state_dict(state_dict["sampler_state"])
        self._drawing = iter(sampler)
        if "sampler_iter_state" in state_dict:
            drawing: Any = self._drawing
            drawing.load_state_dict(state_dict["sampler_iter_state"])
        elif "sampler_state" not in state_dict:
            count = state_dict["samples_yielded"]
            next(itertools.islice(self._drawing, count, count), None)  # drops so many
        self._yielded = state_dict["samples_yielded"]


class StatefulDistributedSampler(DistributedSampler[Any]):
    """torch's DistributedSampler with a state: how many indices it has yielded."""

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.yielded = 0
        self.next_yielded: int | None = None

    def __iter__(self) -> Iterator[Any]:
        self.yielded, self.next_yielded = self.next_yielded or 0, None
        for index in itertools.islice(super().__iter__(), self.yielded, None):
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        return {"yielded": self.yielded if self.next_yielded is None else self.next_yielded}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        yielded = state_dict.get("yielded")
        if not isinstance(yielded, int) or yielded < 0:
            msg = (
                "the state of a StatefulDistributedSampler is a dict with 'yielded', an int of at "
                f"least 0; found {dict(state_dict)!r}."
            )
            raise StateFormatError(msg)
        if yielded > len(self):
            msg = (
                f"the state is past the end: found yielded={yielded:,} of {len(self):,} indices. "
                "Resume with the same data, on the same number of ranks."
            )
            raise StateMismatchError(msg)
        self.next_yielded = yielded
