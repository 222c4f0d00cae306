"""Copies and pickles of loaders that read lanes go on where the loader is."""

import copy
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed import (
    CARRYING,
    WITH_STATE,
    WITHOUT_STATE,
    MutatingShards,
    Shards,
    StatefulShards,
    in_turn,
)
from support import one_pass, passes, plain

from dataporter import ResumableDataLoader

KINDS = [*WITH_STATE, *WITHOUT_STATE]


lengths = st.lists(st.integers(0, 7), min_size=1, max_size=5)


@pytest.mark.parametrize("dataset", [StatefulShards([9, 4]), MutatingShards([9, 4])])
def test_a_loader_is_pickled_with_its_place_and_without_its_iterators(dataset):
    loader = ResumableDataLoader(dataset, 2, seed=3, lanes=2)
    running = iter(loader)
    expected = in_turn([9, 4], 2, 2)
    assert [plain(next(running)), plain(next(running))] == expected[:2]
    again = pickle.loads(pickle.dumps(loader))
    assert again.state_dict() == loader.state_dict()
    state = again.state_dict()
    again.load_state_dict(state)
    assert one_pass(again) == expected[2:]


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
}


class ByIndex(torch.utils.data.Dataset):
    """Read by index, with a state: each sample also shows how many were read before it."""

    def __init__(self, length):
        self.length, self.read = length, 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read += 1
        return index, self.read

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@settings(max_examples=25)
@given(
    kind=st.sampled_from([*KINDS, *CARRYING]),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    lanes=st.integers(1, 3),
    before=st.integers(0, 2),
    taken=st.integers(0, 4),
)
def test_a_copy_goes_on_as_the_loader_does(copied, kind, lengths, lanes, before, taken):
    loader = ResumableDataLoader(kind(lengths), 2, seed=3, lanes=lanes)
    passes(loader, before)
    running = iter(loader)
    for _ in itertools.islice(running, taken):
        pass
    again = copied(loader)
    assert plain(again.state_dict()) == plain(loader.state_dict())
    assert passes(again, 2) == passes(loader, 2)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_goes_on_as_the_loader_does_with_a_dataset_read_by_index(copied):
    loader = ResumableDataLoader(ByIndex(6), 2, seed=3, shuffle=True)
    one_pass(loader)
    running = iter(loader)
    next(running)
    again = copied(loader)
    assert passes(again, 2) == passes(loader, 2)


@pytest.mark.parametrize(
    "dataset", [Shards([9]), StatefulShards([9]), ByIndex(9), range(9)], ids=lambda d: str(type(d))
)
@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_no_iterator_is_pickled_with_a_loader(dataset, options):
    # Those of itertools cannot be pickled from Python 3.14 on, generators never could.
    loader = ResumableDataLoader(dataset, 2, seed=3, **options)
    for _ in range(2):
        running = iter(loader)
        next(running)
    assert b"itertools" not in pickle.dumps(loader)
