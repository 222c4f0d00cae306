"""A dataset that grows, such as a replay buffer: an epoch has what is there when it begins."""

import json
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import flat, one_pass, passes, plain
from torch.utils.data import DataLoader, Dataset

from dataporter import PositionDroppedWarning, ResumableDataLoader


class Buffer(Dataset):
    def __init__(self, length: int) -> None:
        self.items = list(range(length))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return self.items[index]

    def grow(self, count: int) -> None:
        self.items += range(len(self.items), len(self.items) + count)


def make(buffer: Buffer, batch_size: int = 3, **options) -> ResumableDataLoader:
    return ResumableDataLoader(buffer, batch_size, shuffle=True, seed=1, **options)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_pass_has_as_many_samples_as_there_are_when_it_begins(workers, shuffle):
    for loader_class in (DataLoader, ResumableDataLoader):
        buffer = Buffer(7)
        loader = loader_class(buffer, 3, shuffle=shuffle, num_workers=workers)
        for length in (7, 9, 20):
            assert sorted(flat(one_pass(loader))) == list(range(length))
            assert len(loader) == -(-length // 3)
            buffer.grow(2 if length == 7 else 11)
            assert len(loader) == -(-len(buffer) // 3)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 30), st.integers(0, 10), st.integers(0, 12), st.integers(1, 5), st.integers(1, 5)
)
def test_an_epoch_ends_and_resumes_with_the_length_that_it_began_with(
    length, grown, step, batch_size, other_size
):
    def begun() -> tuple[Buffer, ResumableDataLoader, list]:
        buffer = Buffer(length)
        loader = make(buffer, batch_size)
        batches = iter(loader)
        seen = [plain(batch) for _, batch in zip(range(step), batches, strict=False)]
        buffer.grow(grown)
        return buffer, loader, [seen, batches]

    _, loader, (seen, batches) = begun()
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["num_samples"] == length + grown
    rest = flat(one_pass(batches))
    assert sorted(flat(seen) + rest) == list(range(length))
    following = flat(one_pass(loader))
    assert sorted(following) == list(range(length + grown))

    resumed = make(Buffer(length + grown), other_size)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == {**state, "batch_size": other_size}
    assert (resumed.explain().remaining or 0) == len(rest)
    # A state taken at the last batch leaves an empty rest; one at the end of the epoch none.
    assert flat(one_pass(resumed)) == (following if state["finished"] else rest)


def test_what_was_loaded_is_dropped_for_another_epoch():
    buffer = Buffer(6)
    loader = make(buffer)
    batches = iter(loader)
    next(batches)
    buffer.grow(3)
    state = loader.state_dict()
    resumed = make(buffer)
    resumed.load_state_dict(state)
    with pytest.warns(PositionDroppedWarning):
        resumed.set_epoch(1)
    fresh = make(buffer)
    fresh.set_epoch(1)
    assert passes(resumed, 2) == passes(fresh, 2)


def test_passes_side_by_side_have_their_own_lengths():
    buffer = Buffer(5)
    loader = make(buffer)
    older = iter(loader)
    buffer.grow(4)
    newer = iter(loader)
    assert sorted(flat(one_pass(older))) == list(range(5))
    assert sorted(flat(one_pass(newer))) == list(range(9))


def test_a_state_over_other_data_is_refused_as_ever():
    state = make(Buffer(6)).state_dict()
    assert "length" not in state
    with pytest.raises(ValueError, match="num_samples changed"):
        make(Buffer(7)).load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = make(Buffer(7))
        loader.load_state_dict(state, strict=False)
    assert sorted(flat(one_pass(loader))) == list(range(7))


def test_an_iterator_says_how_many_batches_an_epoch_has():
    loader = make(Buffer(10))
    batches = iter(loader)
    next(batches)
    assert len(batches) == len(loader) == len(iter(DataLoader(Buffer(10), 3)))
    sampled = ResumableDataLoader(torch.arange(4), sampler=[0, 1])
    assert len(iter(sampled)) == 2
