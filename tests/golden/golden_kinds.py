"""Every kind of state: how it is saved, and the loader that goes on from it.

A kind stays here as long as a released version has saved one. `make.py` writes the states and the
batches that follow them, `test_golden_states.py` compares.
"""

import contextlib
import itertools
import json
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from golden_data import (
    Augmented,
    Backwards,
    Buffer,
    Counting,
    Files,
    Ids,
    Numbers,
    NumbersThatDraw,
    NumbersWithState,
    NumbersWithStatefulIterator,
    Walk,
)
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torch.utils.data import RandomSampler as TorchRandomSampler

from dataporter import ResumableDataLoader, ResumableDistributedSampler, ResumableSampler
from dataporter.errors import FastForwardWarning, UncheckedStateWarning
from dataporter.law import Topology
from dataporter.stateful_dataloader import (
    RandomSampler,
    StatefulDataLoader,
    StatefulDistributedSampler,
)
from dataporter.trainers.distributed_checkpoint import WholeState
from dataporter.trainers.loader_states import load_states, read_states, write_states
from dataporter.training import CheckpointManager
from dataporter.views import LengthBatches, Mixture, packed

OF_NEXT_EPOCH = 3  # batches that are kept of the epoch after the state's


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of state."""

    saving: Callable[[], Any]  # runs a loader for a while and returns its state
    loader: Callable[[], Any]  # a new loader, to go on with
    suffix: str = ".json"
    write: Callable[[Any, Path], None] | None = None  # other than as JSON or by torch.save
    load: Callable[[Any, Path], None] | None = None  # other than by load_state_dict
    warns: type[Warning] | None = None  # what loading it warns of
    whole: Callable[[Any], Any] | None = None  # what is iterated, if not the loader
    done: int | None = None  # batches of the second epoch, where a run alike can go on to tell

    def save(self, folder: Path, name: str) -> None:
        """Write the state as a user would."""
        path = folder / (name + self.suffix)
        state = self.saving()
        if self.write is not None:
            self.write(state, path)
        elif self.suffix == ".json":
            path.write_text(json.dumps(state, indent=1) + "\n")
        else:
            torch.save(state, path)

    def following(self, folder: Path, name: str) -> list[list[Any]]:
        """Load the state, and return the rest of its epoch and how the next one begins."""
        path = folder / (name + self.suffix)
        loader = self.loader()
        load = self.load or (lambda loader, path: loader.load_state_dict(contents(path)))
        expected = contextlib.nullcontext() if self.warns is None else expecting(self.warns)
        with expected:
            load(loader, path)
            batches = loader if self.whole is None else self.whole(loader)
            return [one_pass(batches), one_pass(batches)[:OF_NEXT_EPOCH]]

    def uninterrupted(self) -> list[list[Any]]:
        """The same batches of a run that loads nothing."""
        loader = self.loader()
        _, second, third, fourth = (one_pass(loader) for _ in range(4))
        rest = second[self.done :]
        return [rest, third[:OF_NEXT_EPOCH]] if rest else [third, fourth[:OF_NEXT_EPOCH]]


def one_pass(batches: Any) -> list[Any]:
    """The batches of a pass as JSON has them."""
    return [plain(batch) for batch in batches]


@contextlib.contextmanager
def expecting(category: type[Warning]) -> Iterator[None]:
    """Raise unless there is such a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [one.category for one in caught] == [category], caught


def contents(path: Path) -> Any:
    """What a file of a golden state holds."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    return torch.load(path, weights_only=True)


def plain(batch: Any) -> Any:
    """A batch as JSON has it."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(part) for part in batch] if isinstance(batch, list | tuple) else batch


def after(batches: int, loader: Any) -> Any:
    """The state of a loader after so many batches of its second epoch."""
    for _ in loader:
        pass
    return within(batches, loader)


def within(batches: int, loader: Any) -> Any:
    """The state of a loader after so many batches of its next pass."""
    for _ in itertools.islice(iter(loader), batches):
        pass
    return loader.state_dict()


def kind(make: Callable[[], Any], batches: int = 2, **options: Any) -> Kind:
    """A state in the second epoch of a loader, continued by one like it."""
    return Kind(saving=lambda: after(batches, make()), loader=make, done=batches, **options)


# Our own order


def _loader(dataset: Any, batch_size: int | None = 4, **options: Any) -> ResumableDataLoader:
    return ResumableDataLoader(dataset, batch_size, **{"seed": 11, **options})


def _weighted() -> ResumableDataLoader:
    weights = [1 + index % 5 for index in range(19)]
    return _loader(Ids(19), seed=None, sampler=ResumableSampler(19, weights=weights, seed=11))


def _elastic() -> Any:
    """Saved by ranks 0 and 1 with batches of 3; a rank alone goes on, with batches of 4."""
    ranks = [_loader(Ids(23), 3, shuffle=True, rank=rank, world_size=2) for rank in (0, 1)]
    first, second = [within(2, rank) for rank in ranks]
    assert first == second
    return first


def _ahead() -> Any:
    """Saved while the second batch was late and those behind it had been delivered."""
    late = multiprocessing.get_context("fork").Event()
    held = _loader(Ids(24), shuffle=True)
    second = [index for index, _ in zip(held.sampler, range(8), strict=False)][4:]

    class Late(Ids):
        def __getitem__(self, index: int) -> int:
            if index in second:
                late.wait(60)
            return index

    loader = _loader(
        Late(24),
        shuffle=True,
        num_workers=2,
        in_order=False,
        multiprocessing_context="fork",
    )
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    late.set()
    assert state["ahead"], "nothing was ahead"
    return state


def _excluded() -> Any:
    loader = _loader(Ids(23), shuffle=True)
    loader.exclude(0, 5, 9)
    loader.exclude(1, 6, 13)
    return after(2, loader)


def _growing() -> Any:
    buffer = Buffer(14)
    loader = _loader(buffer, 3, shuffle=True)
    batches = iter(loader)
    next(batches)
    buffer.grow(6)
    return loader.state_dict()


def _place() -> Any:
    state = after(2, _loader(Ids(23), shuffle=True))
    names = ("epoch", "samples_processed", "batches_processed", "rng_state")
    return {name: state[name] for name in names}


OWN = {
    "sequential": kind(lambda: _loader(Ids(23))),
    "shuffled": kind(lambda: _loader(Ids(23), shuffle=True)),
    # Above 4,096 samples the order is another algorithm.
    "shuffled_large": kind(lambda: _loader(Ids(4_099), 64, shuffle=True), batches=60),
    "shuffled_samples": kind(lambda: _loader(Ids(9), None, shuffle=True), batches=4),
    "weighted": kind(_weighted),
    "augmented": kind(lambda: _loader(Augmented(11), 3, shuffle=True)),
    "tail_drop": kind(lambda: _loader(Ids(23), shuffle=True, tail="drop")),
    "rank_1_of_2_padded": kind(lambda: _loader(Ids(23), shuffle=True, rank=1, world_size=2)),
    "two_ranks_as_one": Kind(saving=_elastic, loader=lambda: _loader(Ids(23), shuffle=True)),
    "ahead": Kind(saving=_ahead, loader=lambda: _loader(Ids(24), shuffle=True)),
    "excluded": Kind(saving=_excluded, loader=lambda: _loader(Ids(23), shuffle=True)),
    "fresh": Kind(
        saving=lambda: _loader(Ids(9), shuffle=True).state_dict(),
        loader=lambda: _loader(Ids(9), shuffle=True),
    ),
    "finished": kind(lambda: _loader(Ids(9), shuffle=True), batches=4),
    "growing": Kind(saving=_growing, loader=lambda: _loader(Buffer(20), 3, shuffle=True)),
    "place": Kind(
        saving=_place,
        loader=lambda: _loader(Ids(23), shuffle=True),
        warns=UncheckedStateWarning,
    ),
    "fingerprint_of_a_tensor": kind(lambda: _loader(torch.arange(19) * 3, shuffle=True)),
    "seed_of_the_state": Kind(
        saving=lambda: after(2, _loader(Ids(23), shuffle=True)),
        loader=lambda: _loader(Ids(23), shuffle=True, seed=None),
    ),
}


# Samplers of the user's own


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _drawing(generator: torch.Generator | None) -> ResumableDataLoader:
    dataset = Ids(17)
    return _loader(dataset, 3, sampler=TorchRandomSampler(dataset, generator=generator))


def _in_batches() -> ResumableDataLoader:
    sampler = TorchRandomSampler(range(17), generator=_generator())
    return _loader(Ids(17), 1, batch_sampler=BatchSampler(sampler, 3, drop_last=False))


def _distributed(sampler: type[DistributedSampler[Any]]) -> ResumableDataLoader:
    return _loader(Ids(17), 3, sampler=sampler(Ids(17), num_replicas=2, rank=1, seed=2))


SAMPLED = {
    "sampler_by_state": kind(lambda: _loader(Ids(40), sampler=Walk(40, 15)), suffix=".pt"),
    "sampler_by_replay": kind(lambda: _drawing(None)),
    "sampler_by_replay_with_generator": kind(lambda: _drawing(_generator())),
    "batch_sampler_by_replay": kind(lambda: _loader(Ids(17), 1, batch_sampler=Backwards(17))),
    "batch_sampler_by_replay_with_generator": kind(_in_batches),
    "batch_sampler_by_state": kind(
        lambda: _loader(Ids(40), 1, batch_sampler=BatchSampler(Walk(40, 15), 4, drop_last=False)),
        suffix=".pt",
    ),
    "distributed_sampler": kind(lambda: _distributed(DistributedSampler)),
    "stateful_distributed_sampler": kind(lambda: _distributed(StatefulDistributedSampler)),
}


# Lanes


def _lanes(dataset: Any, **options: Any) -> ResumableDataLoader:
    return _loader(dataset, 2, **{"lanes": 3, **options})


def _ranks_of_lanes() -> list[Any]:
    """The states of two ranks that share three lanes."""
    ranks = [_lanes(NumbersWithState(), rank=rank, world_size=2) for rank in (0, 1)]
    return [within(2, rank) for rank in ranks]


LANES = {
    "lanes_by_state_of_the_dataset": kind(lambda: _lanes(NumbersWithState()), batches=4),
    "lanes_by_state_of_the_iterator": kind(
        lambda: _lanes(NumbersWithStatefulIterator()), batches=4
    ),
    "lanes_by_reading_again": kind(lambda: _lanes(Numbers()), batches=4, warns=FastForwardWarning),
    # Of 9 batches, the states of lanes are those after the sixth, or near it.
    "lanes_with_few_snapshots": kind(
        lambda: _lanes(NumbersWithState(), snapshot_every_n_steps=7), batches=9
    ),
    "lanes_that_draw": kind(lambda: _lanes(NumbersThatDraw()), batches=4),
    "lanes_that_ended": kind(lambda: _lanes(NumbersWithState()), batches=11),
    "lanes_of_two_ranks_as_one": Kind(
        saving=_ranks_of_lanes, loader=lambda: _lanes(NumbersWithState())
    ),
    "map_style_with_state": kind(lambda: _loader(Counting(13), 3, shuffle=True)),
}


# Forms of others, and files


def _torchdata(dataset: Any, batches: int, **options: Any) -> Any:
    """A state of the real torchdata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdata.stateful_dataloader import StatefulDataLoader as Theirs

        torch.manual_seed(4)
        loader = Theirs(dataset, 3, **options)
        return within(batches, loader)


def _sampler(world_size: int) -> Any:
    if world_size == 1:
        return ResumableSampler(19, shuffle=True, seed=11)
    return ResumableDistributedSampler(19, shuffle=True, seed=11, rank=1, num_replicas=world_size)


def _sampler_state(world_size: int) -> Any:
    sampler = _sampler(world_size)
    for _ in DataLoader(Ids(19), 4, sampler=sampler):
        pass
    for _ in itertools.islice(iter(DataLoader(Ids(19), 4, sampler=sampler)), 2):
        pass
    return sampler.state_dict(consumed=8)


def _on_torchs_loader(sampler: Any) -> Any:
    return DataLoader(Ids(19), 4, sampler=sampler)


def _shuffled_second_epoch() -> Any:
    loader = _loader(Ids(23), shuffle=True)
    after(2, loader)
    return loader


def _write_checkpoint(loader: Any, path: Path) -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        saved = CheckpointManager(folder).save(dataloader=loader, epoch=1, step=2)
        path.write_bytes(saved.read_bytes())


def _load_checkpoint(loader: Any, path: Path) -> None:
    CheckpointManager(path.parent).load(path, dataloader=loader)


def _load_loaders_file(loader: Any, path: Path) -> None:
    [states] = read_states(path, remedy="")
    load_states(loader, states, Topology())


FORMS = {
    "torchdata_sequential": Kind(
        saving=lambda: _torchdata(Ids(20), 3), loader=lambda: StatefulDataLoader(Ids(20), 3)
    ),
    "torchdata_sequential_with_workers": Kind(
        saving=lambda: _torchdata(Ids(20), 3, num_workers=2, multiprocessing_context="fork"),
        loader=lambda: StatefulDataLoader(Ids(20), 3),
    ),
    "torchdata_shuffled": Kind(
        saving=lambda: _torchdata(Ids(20), 3, shuffle=True),
        loader=lambda: StatefulDataLoader(
            Ids(20), 3, sampler=RandomSampler(Ids(20), generator=_generator())
        ),
        suffix=".pt",
    ),
    "torchdata_lanes": Kind(
        saving=lambda: _torchdata(
            NumbersWithState(), 3, num_workers=2, multiprocessing_context="fork"
        ),
        loader=lambda: StatefulDataLoader(NumbersWithState(), 3),
    ),
    "resumable_sampler": Kind(
        saving=lambda: _sampler_state(1), loader=lambda: _sampler(1), whole=_on_torchs_loader
    ),
    "resumable_distributed_sampler": Kind(
        saving=lambda: _sampler_state(2), loader=lambda: _sampler(2), whole=_on_torchs_loader
    ),
    "checkpoint_manager": Kind(
        saving=_shuffled_second_epoch,
        loader=lambda: _loader(Ids(23), shuffle=True),
        suffix=".pt",
        write=_write_checkpoint,
        load=_load_checkpoint,
    ),
    # What Accelerate's and transformers' integrations write beside a framework's checkpoint.
    "loaders_file": Kind(
        saving=_shuffled_second_epoch,
        loader=lambda: _loader(Ids(23), shuffle=True),
        suffix=".pt",
        write=lambda loader, path: write_states(path, [loader]),
        load=_load_loaders_file,
    ),
    # torch.distributed.checkpoint's entry.
    "whole_state": Kind(
        saving=lambda: WholeState(_shuffled_second_epoch()).state_dict(),
        loader=lambda: _loader(Ids(23), shuffle=True),
        suffix=".pt",
        load=lambda loader, path: WholeState(loader).load_state_dict(contents(path)),
    ),
}

# Data in files


def _tracks(**options: Any) -> ResumableDataLoader:
    return _loader(Files(), 16, shuffle=True, **options)


TRACKS = {
    "tracks": kind(_tracks, batches=20),
    # Ranks share a step by tracks.
    "tracks_rank_1_of_2": kind(lambda: _tracks(rank=1, world_size=2), batches=10),
}


# Views


def _mixture(weights: tuple[float, float], **options: Any) -> ResumableDataLoader:
    parts = {"web": (Ids(40), weights[0]), "code": (Augmented(7), weights[1])}
    return _loader(Mixture(parts, **options), 1, shuffle=True)


def _reweighted() -> Any:
    """Saved after other weights began in mid-epoch."""
    state = within(9, _mixture((0.7, 0.3)))
    loader = _mixture((1, 3))
    loader.load_state_dict(state)
    return within(5, loader)


def _documents() -> list[list[int]]:
    return [[document] * (1 + document * 7 % 11) for document in range(40)]


def _packed(**options: Any) -> ResumableDataLoader:
    def tokens(batch: Any) -> Any:
        return batch["tokens"]

    data = packed(_documents(), length=16, num_workers=0, **options)
    return _loader(data, 2, shuffle=True, converter=tokens)


def _by_length() -> ResumableDataLoader:
    lengths = [len(document) for document in _documents()]
    return _loader(Ids(40), 1, batch_sampler=LengthBatches(lengths, max_tokens=30))


VIEWS = {
    "mixture": kind(lambda: _mixture((0.7, 0.3)), batches=9),
    "mixture_with_a_schedule": kind(
        lambda: _mixture((1, 1), epoch=40, schedule=[(0, {"web": 3, "code": 1}), (25, {"code": 1})])
    ),
    "mixture_of_other_weights": Kind(saving=_reweighted, loader=lambda: _mixture((1, 3))),
    "packed_windows": kind(_packed),
    "packed_bins": kind(lambda: _packed(kind="best-fit")),
    "length_batches": kind(_by_length),
}

KINDS: dict[str, Kind] = {**OWN, **SAMPLED, **LANES, **FORMS, **TRACKS, **VIEWS}
