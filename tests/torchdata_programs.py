"""Random programs that torchdata saves in and dataporter resumes, and what has to follow.

A program saves a state of the real torchdata. What follows it there, in the same run or in one that
has loaded it, is what our loader has to deliver; or it refuses with an error of our own.
"""

import pickle
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from support import Ids, Stateful, Stateless, plain
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    Sampler,
    get_worker_info,
)
from torch.utils.data import RandomSampler as TorchsRandomSampler

from dataporter.errors import DataPorterError, FastForwardWarning
from dataporter.stateful_dataloader import BatchSampler as OurBatchSampler
from dataporter.stateful_dataloader import (
    RandomSampler,
    StatefulDataLoader,
    StatefulDistributedSampler,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchdata.stateful_dataloader import StatefulDataLoader as Theirs
    from torchdata.stateful_dataloader.sampler import BatchSampler as TheirBatchSampler
    from torchdata.stateful_dataloader.sampler import RandomSampler as TheirRandomSampler


class Counting(Ids):
    """Read by index: a sample is its index and how many this copy has read, which is its state."""

    read = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.read += 1
        return index, self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class Stream(IterableDataset):
    """Numbers, of which each worker has its share. No state."""

    def __init__(self, length: int) -> None:
        self.length, self.i = length, 0

    def share(self) -> range:
        info = get_worker_info()
        return range(self.length) if info is None else range(info.id, self.length, info.num_workers)

    def __iter__(self) -> Iterator[int]:
        yield from self.share()


class KeptStream(Stream):
    """Its state is the dataset's."""

    def __iter__(self) -> Iterator[int]:
        share = self.share()
        while self.i < len(share):
            self.i += 1
            yield share[self.i - 1]
        self.i = 0

    def state_dict(self) -> dict[str, int]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.i = state["i"]


class _Place:
    """An iterator with a state."""

    def __init__(self, numbers: Any) -> None:
        self.numbers, self.at = numbers, 0

    def __iter__(self) -> "_Place":
        return self

    def __next__(self) -> Any:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class PlacedStream(Stream):
    """Its state is the iterator's."""

    def __iter__(self) -> _Place:
        return _Place(self.share())


class PlacedSampler(Sampler):
    """Its state is the iterator's."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> _Place:
        return _Place(list(range(self.length))[::-1])

    def __len__(self) -> int:
        return self.length


class Endless(Sampler):
    """No length, and no state."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length - 1, -1, -1)


class StatefulEndless(Stateful):
    """No length, and a state."""

    __len__ = None  # type: ignore[assignment]


class Groups(Sampler):
    """Batches of 1, 2, 3, 1, 2, 3 and so on. No state, and no length."""

    def __init__(self, length: int) -> None:
        self.length, self.begun = length, 0

    def groups(self) -> list[list[int]]:
        left, groups = list(range(self.length)), []
        while left:
            size = 1 + len(groups) % 3
            groups, left = [*groups, left[:size]], left[size:]
        return groups

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.groups()


class KeptGroups(Groups):
    """The same with a state."""

    def __iter__(self) -> Iterator[list[int]]:
        groups = self.groups()
        while self.begun < len(groups):
            self.begun += 1
            yield groups[self.begun - 1]
        self.begun = 0

    def state_dict(self) -> dict[str, int]:
        return {"begun": self.begun}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begun = state["begun"]


DATASETS = {
    "map": Ids,
    "map with a state": Counting,
    "stream": Stream,
    "stream with a state": KeptStream,
    "stream, state of its iterator": PlacedStream,
}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


# What says the order, by name: the arguments that torchdata's loader and ours get for it.
ORDERS: dict[str, Any] = {
    "sequential": lambda _data, _ours: {},
    "shuffle": lambda data, ours: {"sampler": RandomSampler(data)} if ours else {"shuffle": True},
    "shuffle by torchdata's sampler": lambda data, _: {"sampler": TheirRandomSampler(data)},
    "draws with replacement": lambda data, ours: {
        "sampler": (RandomSampler if ours else TheirRandomSampler)(
            data, replacement=True, num_samples=2 * len(data)
        )
    },
    "sampler": lambda data, _: {"sampler": range(len(data) - 1, -1, -1)},
    "sampler without length": lambda data, _: {"sampler": Endless(len(data))},
    "sampler with a state": lambda data, _: {"sampler": Stateful(len(data), len(data))},
    "sampler with a state, without length": lambda data, _: {
        "sampler": StatefulEndless(len(data), len(data))
    },
    "sampler, state of its iterator": lambda data, _: {"sampler": PlacedSampler(len(data))},
    "sampler by a generator": lambda data, _: {
        "sampler": TorchsRandomSampler(data, generator=_generator())
    },
    "sampler by the global generator": lambda data, _: {"sampler": Stateless(len(data))},
    "DistributedSampler": lambda data, _: {"sampler": _shared(DistributedSampler, data)},
    "StatefulDistributedSampler": lambda data, _: {
        "sampler": _shared(StatefulDistributedSampler, data)
    },
    "batches of range": lambda data, _: {
        "batch_sampler": BatchSampler(range(len(data)), 3, drop_last=False)
    },
    "batches of range, dropping": lambda data, _: {
        "batch_sampler": BatchSampler(range(len(data)), 4, drop_last=True)
    },
    "batches of a sampler with a state": lambda data, _: {
        "batch_sampler": BatchSampler(Stateful(len(data), len(data)), 3, drop_last=False)
    },
    "batches by a generator": lambda data, _: {
        "batch_sampler": BatchSampler(
            TorchsRandomSampler(data, generator=_generator()), 3, drop_last=False
        )
    },
    "torchdata's batches of a sampler with a state": lambda data, ours: {
        "batch_sampler": (OurBatchSampler if ours else TheirBatchSampler)(
            Stateful(len(data), len(data)), 3, drop_last=False
        )
    },
    "torchdata's batches, shuffled": lambda data, ours: {
        "batch_sampler": OurBatchSampler(RandomSampler(data), 3, drop_last=False)
        if ours
        else TheirBatchSampler(TheirRandomSampler(data), 3, drop_last=False)
    },
    "torchdata's batches of range": lambda data, ours: {
        "batch_sampler": (OurBatchSampler if ours else TheirBatchSampler)(
            range(len(data)), 3, drop_last=False
        )
    },
    "list of batches": lambda data, _: {"batch_sampler": Groups(len(data)).groups()},
    "batch sampler": lambda data, _: {"batch_sampler": Groups(len(data))},
    "batch sampler with a state": lambda data, _: {"batch_sampler": KeptGroups(len(data))},
}


# Of these torchdata saves nothing that the next epoch could be known by.
UNSAVED = {
    "sampler by the global generator",
    "sampler by a generator",
    "batches by a generator",
    "batches of a sampler with a state",
}


def _shared(kind: Any, data: Any) -> Any:
    return kind(data, 2, 1, shuffle=True, seed=7)


def one_pass(loader: Any, epoch: int) -> list[Any]:
    return [plain(batch) for batch in begun(loader, epoch)]


def begun(loader: Any, epoch: int) -> Iterator[Any]:
    """Begin a pass, and tell the sampler its epoch as torch's users do."""
    _tell(loader, epoch)
    return iter(loader)


def _tell(loader: Any, epoch: int) -> None:
    if type(loader.sampler) in (DistributedSampler, StatefulDistributedSampler):
        loader.sampler.set_epoch(epoch)


@dataclass(frozen=True)
class Program:
    """Loaders, and the moment in which torchdata's saves its state."""

    dataset: str
    order: str
    length: int
    batch_size: int | None
    drop_last: bool
    workers: int
    every: int | None
    epoch: int
    done: int | None  # batches of that epoch; None for all, and its end

    def loader(self, kind: Any) -> Any:
        data, ours = DATASETS[self.dataset](self.length), kind is StatefulDataLoader
        batches: dict[str, Any] = {"batch_size": self.batch_size}
        if self.batch_size is not None:
            batches["drop_last"] = self.drop_last
        order = {} if isinstance(data, IterableDataset) else ORDERS[self.order](data, ours)
        if "batch_sampler" in order:
            batches = {}
        return kind(
            data,
            num_workers=self.workers,
            snapshot_every_n_steps=self.every,
            **batches,
            **order,
        )


FIELDS: dict[str, list[Any]] = {
    "dataset": list(DATASETS),
    "order": list(ORDERS),
    "length": [1, 7, 12, 17],
    "batch_size": [None, 1, 3, 4],
    "drop_last": [False, True],
    "workers": [0],
    "every": [1, 3, None],
    "epoch": [0, 1],
    "done": [0, 1, 2, 3, 5, 8, None],
}


def saved(program: Program) -> tuple[bytes, list[Any], list[Any], int]:
    """The state that torchdata saves, the passes that follow in the same run, their first epoch."""
    torch.manual_seed(11)
    theirs = program.loader(Theirs)
    for epoch in range(program.epoch):
        one_pass(theirs, epoch)
    batches, epoch = begun(theirs, program.epoch), program.epoch
    if program.done is None:
        list(batches)
    for _ in range(program.done or 0):
        next(batches, None)
    state = pickle.dumps(theirs.state_dict())
    if pickle.loads(state)["_iterator_finished"]:
        epoch += 1
        batches = begun(theirs, epoch)
    first = [plain(batch) for batch in batches]
    return state, first, one_pass(theirs, epoch + 1), epoch


def resumed(
    program: Program, kind: Any, state: bytes, epoch: int, seed: int
) -> tuple[list[Any], list[Any]]:
    """Two passes of a new loader that has loaded the state, where a pass of `epoch` comes next."""
    torch.manual_seed(seed)
    loader = program.loader(kind)
    _tell(loader, program.epoch)
    loader.load_state_dict(pickle.loads(state))
    first = one_pass(loader, epoch)
    return first, one_pass(loader, epoch + 1)


def verdict(program: Program) -> str:
    """Judge what our loader does: 'right', 'refused: …' or 'wrong: …'.

    Workers of torchdata draw two shuffles an epoch and use one: the epoch after may differ.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FastForwardWarning)
        return _judged(program)


def _judged(program: Program) -> str:
    state, *followed, epoch = saved(program)
    expected = [followed]
    with suppress(Exception):  # torchdata itself does not resume everything
        expected.append(list(resumed(program, Theirs, state, epoch, 11)))
    try:
        first, second = resumed(program, StatefulDataLoader, state, epoch, 23)
    except DataPorterError as error:
        return f"refused: {type(error).__name__}: {error}"
    if program.order in UNSAVED and (epoch > program.epoch or not program.done):
        # Nothing of this pass was delivered. It is in a new order, which nobody has saved.
        is_right = _shape(first) == _shape(followed[0])
        return "right" if is_right else f"wrong: {first} instead of {followed[0]}"
    if not any(first == each[0] for each in expected):
        return f"wrong: {first} instead of {expected[0][0]}, or {expected[-1][0]} after a load"
    if any([first, second] == each for each in expected):
        return "right"
    return f"right, and then {second} instead of {expected[0][1]} or {expected[-1][1]}"


def _shape(batches: list[Any]) -> list[Any]:
    return [torch.tensor(batch).shape for batch in batches]
