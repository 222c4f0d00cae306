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
from dataporter.errors import OptionError, StateError, StateMismatchError


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


@pytest.mark.parametrize("grown", [5, -4])
def test_a_batch_of_an_epoch_that_began_before_the_dataset_changed_is_found_again(grown):
    buffer = Buffer(12)
    loader = make(buffer)
    epochs = []
    for _ in range(3):
        epochs.append([(loader.delivered.position, batch.tolist()) for batch in loader])
        if grown > 0:
            buffer.grow(grown)
        else:
            del buffer.items[grown // 2 :]
    if grown < 0:
        epochs = [[each for each in epochs[2] if max(each[1]) < len(buffer)]]  # others are gone
    for epoch, delivered in enumerate(epochs, 3 - len(epochs)):
        for position, batch in delivered:
            assert loader.batch_at(epoch, position).tolist() == batch
            assert sorted(loader.samples_at(epoch, range(position, position + len(batch)))) == (
                sorted(batch)
            )
    assert sorted(loader.samples_at(3, range(len(buffer)))) == buffer.items
    with pytest.raises(OptionError, match=f"position of epoch 3 must be in .0, {len(buffer)}"):
        loader.batch_at(3, len(buffer))


def test_an_epoch_whose_length_is_unknown_cannot_be_looked_into():
    buffer = Buffer(12)
    loader = make(buffer)
    one_pass(loader), one_pass(loader)
    next(iter(loader))
    buffer.grow(3)
    state = loader.state_dict()
    resumed = make(buffer)
    resumed.load_state_dict(state)
    assert resumed.batch_at(2, 3).tolist() == loader.batch_at(2, 3).tolist()
    assert sorted(resumed.samples_at(3, range(15))) == list(range(15))
    with pytest.raises(OptionError, match="the length of epoch 1 is unknown"):
        resumed.batch_at(1, 3)
    same = make(Buffer(12))
    same.load_state_dict({**state, "num_samples": 12, "length": None})
    assert same.batch_at(1, 3).tolist() == loader.batch_at(1, 3).tolist()


def test_a_pass_that_is_read_beside_a_longer_one_goes_on_in_its_own_epoch():
    buffer = Buffer(8)
    loader, other = make(buffer), make(Buffer(8))
    older, others = iter(loader), iter(other)
    assert next(older).tolist() == next(others).tolist()
    buffer.grow(4)
    iter(loader)
    loader.exclude(5, 0, 1)  # so that the older pass is read anew
    assert flat(one_pass(older)) == flat(one_pass(others))


def test_a_span_of_a_later_epoch_is_excluded_by_the_length_that_epoch_will_have():
    buffer = Buffer(6)
    loader = make(buffer)
    next(iter(loader))
    buffer.grow(4)
    loader.exclude(1, 6, 10)
    with pytest.raises(OptionError, match="stop <= 6, the length of epoch 0"):
        loader.exclude(0, 6, 10)
    with pytest.raises(OptionError, match="stop <= 10, the length of epoch 1"):
        loader.exclude(1, 6, 11)
    assert len(flat(one_pass(loader))) == 6


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
def test_excluded_positions_past_the_end_of_a_shorter_epoch_leave_nothing_out(tail):
    buffer = Buffer(20)
    loader = make(buffer, 4, tail=tail)
    loader.exclude(1, 2, 4)
    loader.exclude(1, 10, 18)
    one_pass(loader)
    del buffer.items[12:]
    assert len(flat(one_pass(loader))) == 8  # 2, 3, 10 and 11 are left out
    assert loader.excluded == [(1, 2, 4), (1, 10, 12)]
    resumed = make(buffer, 4, tail=tail)
    resumed.load_state_dict(loader.state_dict())


def test_a_state_loaded_over_less_data_leaves_out_what_is_there():
    loader = make(Buffer(40))
    loader.exclude(0, 12, 40)
    state = loader.state_dict()
    shorter = make(Buffer(10))
    with pytest.warns(UserWarning, match="num_samples changed"):
        shorter.load_state_dict(state, strict=False)
    assert sorted(flat(one_pass(shorter))) == list(range(10))
    make(Buffer(10)).load_state_dict(shorter.state_dict())


def test_spans_past_the_end_of_the_states_own_epoch_are_refused():
    state = make(Buffer(10)).state_dict()
    with pytest.raises(StateError, match="excludes positions up to 12 of epoch 0, which has 10"):
        make(Buffer(10)).load_state_dict({**state, "excluded": [[0, 3, 12]]})
    make(Buffer(10)).load_state_dict({**state, "excluded": [[1, 3, 12]]})


def test_a_state_of_more_positions_than_there_are_samples_is_refused():
    state = make(Buffer(20)).state_dict()
    loader = make(Buffer(20))
    with pytest.raises(StateMismatchError, match="has 21 positions, and this dataset has 20"):
        loader.load_state_dict({**state, "length": 21})
    loader.load_state_dict({**state, "length": 21}, strict=False)
    assert sorted(flat(one_pass(loader))) == list(range(20))
