"""States that the real torchdata has saved are continued, or refused with the reason."""

import warnings
from typing import Any

import pytest
import torch
from support import Ids, Stateful, one_pass, plain
from torch.utils.data import IterableDataset, get_worker_info

from dataporter import FastForwardWarning, StateFormatError, StateMismatchError
from dataporter.stateful_dataloader import RandomSampler, StatefulDataLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchdata.stateful_dataloader import StatefulDataLoader as Theirs

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


def test_an_iterable_without_a_state_of_which_a_part_had_ended_is_refused():
    state, _ = broken_off(Theirs(Streamed(1, 11), 2, num_workers=2), 3)
    with pytest.raises(StateMismatchError, match="how far each had come"):
        StatefulDataLoader(Streamed(1, 11), 2, num_workers=2).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_with_a_state_goes_on(workers):
    state, rest = broken_off(Theirs(Counting(20), 3, num_workers=workers), 3)
    loader = StatefulDataLoader(Counting(20), 3, num_workers=2)
    loader.load_state_dict(state)
    assert one_pass(loader) == rest


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
