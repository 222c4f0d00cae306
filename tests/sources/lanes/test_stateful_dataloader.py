"""`StatefulDataLoader` keeps states as torchdata's tutorial says; documents/ runs the tutorial."""

import re
from typing import Any

import pytest
import torch
import torch.utils.data
from streamed import OwnIterator, Shards
from support import Ids, Stateful, one_pass, pass_with_states, passes, plain
from torch.utils.data import Dataset, IterableDataset
from tutorial_dataset import MyIterableDataset

from dataporter.errors import FastForwardWarning, OptionError, StateFormatError
from dataporter.stateful_dataloader import (
    BatchSampler,
    RandomSampler,
    StatefulDataLoader,
    StatefulDistributedSampler,
)


def test_saving_and_loading_state():
    dataset = MyIterableDataset(40, 0)
    dataloader = StatefulDataLoader(dataset, num_workers=2)
    for i, _batch in enumerate(dataloader):
        if i == 10:
            state_dict = dataloader.state_dict()
            break
    dataloader = StatefulDataLoader(dataset, num_workers=2)
    dataloader.load_state_dict(state_dict)
    expected = one_pass(StatefulDataLoader(dataset, num_workers=2))
    assert one_pass(dataloader) == expected[11:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_that_resets_itself_at_its_end_is_not_replayed(num_workers):
    dl = StatefulDataLoader(MyIterableDataset(13, 0), batch_size=2, num_workers=num_workers)
    batches, states = pass_with_states(dl)
    for k in range(1, len(batches) + 1):
        resumed = StatefulDataLoader(
            MyIterableDataset(13, 0), batch_size=2, num_workers=num_workers
        )
        resumed.load_state_dict(states[k])
        assert passes(resumed, 2) == [batches[k:], batches]


class Counter(Dataset):
    """A sample is its index and how many samples this copy has given."""

    def __init__(self, length: int) -> None:
        self.length, self.given = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.given += 1
        return index, self.given

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("every", [1, 4])
def test_the_state_of_a_map_style_dataset_is_that_of_its_worker(num_workers, every):
    options = {"batch_size": 2, "num_workers": num_workers, "snapshot_every_n_steps": every}
    dl = StatefulDataLoader(Counter(19), **options)
    batches, states = pass_with_states(dl)
    for k in {1, 2, 3, 7, len(batches) - 1}:
        resumed = StatefulDataLoader(Counter(19), **options)
        resumed.load_state_dict(states[k])
        assert one_pass(resumed) == batches[k:]


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2), (2, 3)])
def test_a_map_style_state_moves_to_other_workers(before, after):
    dl = StatefulDataLoader(Counter(19), batch_size=2, shuffle=True, num_workers=before)
    batches, states = pass_with_states(dl)
    resumed = StatefulDataLoader(Counter(19), batch_size=2, shuffle=True, num_workers=after)
    resumed.load_state_dict(states[4])
    assert one_pass(resumed) == batches[4:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_of_a_sampler_is_as_of_the_delivered_batch(num_workers):
    def make():
        sampler = Stateful(50, 11)
        return StatefulDataLoader(Ids(50), sampler=sampler, batch_size=2, num_workers=num_workers)

    batches, states = pass_with_states(make())
    for k in range(1, len(batches) + 1):
        resumed = make()
        resumed.load_state_dict(states[k])
        assert one_pass(resumed) == batches[k:]
    drawn = [state["sampler"]["state"]["drawn"] for state in states[1:-2]]
    assert drawn == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_samplers_with_a_state_of_their_iterators(num_workers):
    def make(seed):
        generator = torch.Generator().manual_seed(seed)
        sampler = BatchSampler(RandomSampler(range(17), generator=generator), 3, drop_last=False)
        return StatefulDataLoader(Ids(17), batch_sampler=sampler, num_workers=num_workers)

    loader = make(1)
    batches, states = pass_with_states(loader)
    for k in (1, 4, len(batches)):
        resumed = make(1)
        resumed.load_state_dict(states[k])
        assert one_pass(resumed) == batches[k:]
        assert len(one_pass(resumed)) == len(batches)


def test_no_snapshots_are_read_again():
    options = {"batch_size": 2, "snapshot_every_n_steps": None}
    dl = StatefulDataLoader(MyIterableDataset(12, 0), **options)
    batches, states = pass_with_states(dl)
    resumed = StatefulDataLoader(MyIterableDataset(12, 0), **options)
    resumed.load_state_dict(states[4])
    assert one_pass(resumed) == batches[4:]


def test_an_empty_state_is_the_start_and_others_are_refused():
    dl = StatefulDataLoader(Ids(4))
    dl.load_state_dict({})
    assert len(one_pass(dl)) == 4
    with pytest.raises(StateFormatError):
        dl.load_state_dict({"_snapshot": 1})
    with pytest.raises(OptionError, match="prefetch_factor"):
        StatefulDataLoader(Ids(4), prefetch_factor=2)


def test_an_iterable_without_a_state_warns_once():
    dl = StatefulDataLoader(Shards([9]))
    next(iter(dl))
    with pytest.warns(FastForwardWarning, match=re.escape("1 batches are read again")) as caught:
        dl.load_state_dict(dl.state_dict())
        assert one_pass(dl) == [[i] for i in range(1, 9)]
    assert len(caught) == 1


def test_a_distributed_sampler_counts_what_it_yielded():
    def make():
        sampler = StatefulDistributedSampler(range(20), num_replicas=2, rank=1, seed=4)
        return StatefulDataLoader(Ids(20), batch_size=3, sampler=sampler, num_workers=1)

    batches, states = pass_with_states(make())
    resumed = make()
    resumed.load_state_dict(states[2])
    assert one_pass(resumed) == batches[2:]
    with pytest.raises(StateFormatError, match="yielded"):
        StatefulDistributedSampler(range(4), 2, 0).load_state_dict({"yielded": -1})


def test_torch_is_left_as_it_is():
    assert torch.utils.data.RandomSampler.__module__.startswith("torch.")
    assert not hasattr(torch.utils.data.RandomSampler(range(3)), "state_dict")
    assert not hasattr(torch.utils.data.BatchSampler, "state_dict")


def test_an_iterator_that_begins_again_by_itself():
    for num_workers in (0, 2):
        dl = StatefulDataLoader(OwnIterator([3, 8]), batch_size=2, num_workers=num_workers)
        batches, states = pass_with_states(dl)
        resumed = StatefulDataLoader(OwnIterator([3, 8]), batch_size=2, num_workers=num_workers)
        resumed.load_state_dict(states[len(batches)])
        assert passes(resumed, 2) == [[], batches]


class Counted(Ids):
    """Read by index, with a state."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def no_good(_worker: int) -> None:
    raise LookupError("no good worker")


@pytest.mark.parametrize("dataset", [Ids(8), Counted(8)])
def test_what_goes_wrong_in_worker_init_fn_is_raised_at_iter(dataset):
    loader = StatefulDataLoader(dataset, num_workers=2, worker_init_fn=no_good)
    for _ in range(2):
        with pytest.raises(LookupError, match="no good worker"):
            iter(loader)


def test_workers_that_begin_well_lose_no_batch_to_being_waited_for():
    loader = StatefulDataLoader(Ids(8), 2, num_workers=2, worker_init_fn=print_nothing)
    assert one_pass(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    iterator = iter(loader)
    assert loader.state_dict()["batches_processed"] == 0
    assert plain(next(iterator)) == [0, 1]
    assert loader.state_dict()["batches_processed"] == 1


def print_nothing(_worker: int) -> None:
    pass


class StaysAtItsEnd(IterableDataset):
    """Goes on where it was: once it was read, it is empty, unless a state is loaded."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict:
        return {"at": self.at}

    def load_state_dict(self, state: dict) -> None:
        self.at = state["at"]


def test_a_state_before_the_first_batch_has_that_of_the_dataset():
    dataset = StaysAtItsEnd()
    loader = StatefulDataLoader(dataset, batch_size=2)
    batches = iter(loader)
    state = loader.state_dict()
    assert one_pass(batches) == [[1, 2], [3, 4], [5]]
    again = StatefulDataLoader(dataset, batch_size=2)
    again.load_state_dict(state)
    assert one_pass(again) == [[1, 2], [3, 4], [5]]
