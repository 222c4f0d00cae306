"""States that the real torchdata has saved are continued, or refused with the reason."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Ids, Stateful, Stateless, one_pass, plain
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, get_worker_info
from torchdata_programs import FIELDS, Endless, PlacedSampler, Program, Theirs, verdict

from dataporter import FastForwardWarning, StateFormatError, StateMismatchError
from dataporter.stateful_dataloader import RandomSampler, StatefulDataLoader

# torchdata uses what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


class Streamed(IterableDataset):
    """Numbers, shared among workers, as many for each as it says; `stateful` or not."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths
        self.i = 0

    def __iter__(self) -> Any:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        first, self.i = self.i, 0
        for number in range(first, self.lengths[worker]):
            self.i = number + 1
            yield 1000 * worker + number
        self.i = 0


class Kept(Streamed):
    def state_dict(self) -> dict[str, int]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.i = state["i"]


class Counting(Ids):
    """A dataset read by index whose samples depend on how many it has read."""

    read = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.read += 1
        return index, self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def broken_off(loader: Any, done: int) -> tuple[dict[str, Any], list[Any]]:
    """The state after so many batches, and what comes after it."""
    iterator = iter(loader)
    for _ in range(done):
        next(iterator)
    state = loader.state_dict()
    return state, [plain(batch) for batch in iterator]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [0, 1, 4, 7])
@pytest.mark.parametrize("every", [1, 3])
def test_a_sequential_run_goes_on_with_any_number_of_workers(workers, done, every):
    state, rest = broken_off(
        Theirs(Ids(20), 3, num_workers=workers, snapshot_every_n_steps=every), done
    )
    for ours in (0, 2):
        loader = StatefulDataLoader(Ids(20), 3, num_workers=ours)
        loader.load_state_dict(state)
        assert one_pass(loader) == rest
        assert len(one_pass(loader)) == 7


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [3, None])
def test_a_shuffled_run_goes_on_with_a_sampler_that_shuffles_alike(workers, batch_size):
    torch.manual_seed(1)
    state, rest = broken_off(Theirs(Ids(20), batch_size, shuffle=True, num_workers=workers), 3)
    dataset = Ids(20)
    loader = StatefulDataLoader(dataset, batch_size, sampler=RandomSampler(dataset))
    loader.load_state_dict(state)
    assert one_pass(loader) == rest
    assert sorted(map(str, one_pass(loader))) != sorted(map(str, rest))


def test_a_shuffled_run_is_refused_by_another_shuffle_with_the_remedy():
    state, _ = broken_off(Theirs(Ids(20), 3, shuffle=True), 3)
    loader = StatefulDataLoader(Ids(20), 3, shuffle=True)
    before = loader.state_dict()
    with pytest.raises(StateMismatchError, match=r"sampler=RandomSampler\(dataset\)"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_with_a_state_goes_on(workers):
    def sampler() -> Stateful:
        return Stateful(20, 15)

    state, rest = broken_off(Theirs(Ids(20), 2, sampler=sampler(), num_workers=workers), 3)
    loader = StatefulDataLoader(Ids(20), 2, sampler=sampler())
    loader.load_state_dict(state)
    assert one_pass(loader) == rest


@pytest.mark.parametrize(("workers", "lengths"), [(0, (11,)), (2, (11, 5)), (2, (2, 9))])
@pytest.mark.parametrize("done", [0, 1, 3, 5])
@pytest.mark.parametrize("every", [1, 2])
def test_an_iterable_with_a_state_goes_on_with_any_number_of_workers(workers, lengths, done, every):
    theirs = Theirs(Kept(*lengths), 2, num_workers=workers, snapshot_every_n_steps=every)
    state, rest = broken_off(theirs, done)
    for ours in (0, 1, 2):
        loader = StatefulDataLoader(Kept(*lengths), 2, num_workers=ours)
        loader.load_state_dict(state)
        assert one_pass(loader) == rest


def test_an_iterable_without_a_state_is_read_again():
    state, rest = broken_off(Theirs(Streamed(11, 11), 2, num_workers=2), 3)
    loader = StatefulDataLoader(Streamed(11, 11), 2)
    with pytest.warns(FastForwardWarning, match="3 batches"):
        loader.load_state_dict(state)
    assert one_pass(loader) == rest


def test_an_iterable_without_a_state_of_which_a_part_had_ended_is_read_again():
    state, rest = broken_off(Theirs(Streamed(1, 11), 2, num_workers=2), 3)
    loader = StatefulDataLoader(Streamed(1, 11), 2, num_workers=2)
    with pytest.warns(FastForwardWarning, match="2 batches"):  # the other lane has ended
        loader.load_state_dict(state)
    assert one_pass(loader) == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_with_a_state_goes_on(workers):
    state, rest = broken_off(Theirs(Counting(20), 3, num_workers=workers), 3)
    loader = StatefulDataLoader(Counting(20), 3, num_workers=2)
    loader.load_state_dict(state)
    assert one_pass(loader) == rest


def test_batches_of_a_batch_sampler_are_not_taken_for_samples():
    def batches() -> BatchSampler:
        return BatchSampler(range(8), 3, drop_last=False)

    state, rest = broken_off(Theirs(Ids(8), batch_sampler=batches()), 2)
    loader = StatefulDataLoader(Ids(8), batch_sampler=batches())
    loader.load_state_dict(state)
    assert (loader.batches_processed, loader.samples_processed) == (2, 6)
    assert one_pass(loader) == rest == [[6, 7]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [2, None])
def test_a_sampler_without_a_length_goes_on(workers, batch_size):
    state, rest = broken_off(Theirs(Ids(9), batch_size, sampler=Endless(9), num_workers=workers), 2)
    loader = StatefulDataLoader(Ids(9), batch_size, sampler=Endless(9))
    loader.load_state_dict(state)
    assert one_pass(loader) == rest


@pytest.mark.parametrize("every", [1, 3])
def test_the_end_of_an_epoch_of_a_sampler_with_a_state_and_workers_is_followed_by_the_next(every):
    def sampler() -> Stateful:
        return Stateful(20, 15)

    options = {"num_workers": 2, "snapshot_every_n_steps": every}
    theirs = Theirs(Ids(20), 3, sampler=sampler(), **options)
    list(theirs)
    state = theirs.state_dict()
    loader = StatefulDataLoader(Ids(20), 3, sampler=sampler(), **options)
    loader.load_state_dict(state)
    assert one_pass(loader) == one_pass(theirs)


@pytest.mark.parametrize(("workers", "lengths"), [(0, (11,)), (2, (11, 3))])
def test_the_end_of_an_iterable_without_a_state_is_followed_by_the_next_epoch(workers, lengths):
    theirs = Theirs(Streamed(*lengths), 2, num_workers=workers)
    list(theirs)
    loader = StatefulDataLoader(Streamed(*lengths), 2, num_workers=workers)
    loader.load_state_dict(theirs.state_dict())
    assert one_pass(loader) == one_pass(theirs)


def test_the_epoch_that_a_sampler_was_told_is_kept():
    def sampler() -> DistributedSampler:
        shared = DistributedSampler(range(20), 2, 1, seed=3)
        shared.set_epoch(5)
        return shared

    state, rest = broken_off(Theirs(Ids(20), 3, sampler=sampler()), 2)
    loader = StatefulDataLoader(Ids(20), 3, sampler=sampler())
    loader.load_state_dict(state)
    assert loader.epoch == 5
    assert one_pass(loader) == rest


@pytest.mark.parametrize(
    ("saved_with", "loaded_with", "said"),
    [
        ({"sampler": Stateless(20)}, {"sampler": Stateless(20)}, "a global random generator"),
        ({"sampler": PlacedSampler(20)}, {"sampler": PlacedSampler(20)}, "sampler's iterator"),
        ({"sampler": Stateful(20, 20)}, {}, "has an order of its own"),
        ({"sampler": Stateful(20, 20)}, {"sampler": range(20)}, "has no load_state_dict"),
        ({"sampler": range(20)}, {"sampler": Stateful(20, 20)}, "has no state of a sampler"),
        ({"shuffle": True}, {"sampler": range(20)}, r"sampler=RandomSampler\(dataset\)"),
        ({}, {"sampler": RandomSampler(range(20))}, "or the other way round"),
    ],
)
def test_what_cannot_be_continued_is_refused_and_changes_nothing(saved_with, loaded_with, said):
    state, _ = broken_off(Theirs(Ids(20), 3, **saved_with), 2)
    torch.manual_seed(1)
    loader = StatefulDataLoader(Ids(20), 3, **loaded_with)
    before, generators = loader.state_dict(), torch.get_rng_state()
    with pytest.raises(StateMismatchError, match=said):
        loader.load_state_dict(state)
    assert str(loader.state_dict()) == str(before)
    assert torch.equal(torch.get_rng_state(), generators)


PROGRAMS = {name: st.sampled_from(values) for name, values in FIELDS.items()}


@settings(deadline=None, max_examples=60)
@given(st.builds(Program, **PROGRAMS))
def test_whatever_torchdata_saves_is_continued_as_there_or_refused(program):
    assert verdict(program).startswith(("right", "refused")), verdict(program)


@pytest.mark.parametrize(
    "program",
    [
        {"order": "batch sampler", "done": 5},
        {"order": "torchdata's batches, shuffled", "every": 1, "done": 2},
        {"dataset": "map with a state", "order": "sampler with a state", "epoch": 0, "done": 2},
        {"dataset": "stream", "every": 1, "done": None},
        {"dataset": "stream, state of its iterator", "length": 17, "epoch": 0, "done": 4},
    ],
    ids=str,
)
def test_with_workers_it_is_continued_as_there(program):
    common = {"dataset": "map", "order": "sequential", "length": 12, "batch_size": 3}
    program = Program(
        **common | {"drop_last": False, "workers": 2, "every": 3, "epoch": 1} | program
    )
    assert verdict(program).startswith("right")


@pytest.mark.parametrize("dataset", [Ids(12), Kept(12)])
@pytest.mark.parametrize(("workers", "every"), [(0, 1), (1, 1), (1, 2)])
def test_a_run_at_its_end_is_followed_by_the_next(dataset, workers, every):
    theirs = Theirs(dataset, 4, num_workers=workers, snapshot_every_n_steps=every)
    list(theirs)
    loader = StatefulDataLoader(dataset, 4)
    loader.load_state_dict(theirs.state_dict())
    assert len(one_pass(loader)) == 3


def test_a_state_of_another_kind_of_dataset_or_a_damaged_one_is_refused():
    state, _ = broken_off(Theirs(Ids(20), 3), 3)
    with pytest.raises(StateMismatchError, match="another kind"):
        StatefulDataLoader(Kept(12), 3).load_state_dict(state)
    with pytest.raises(StateFormatError, match="KeyError"):
        StatefulDataLoader(Ids(20), 3).load_state_dict({"_num_yielded": 3})
