"""`loader.seek(epoch, position)`: the next pass begins there, and nothing is read to get there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Augmented, CountedIds, Ids, Stateful, flat, one_pass, plain
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, default_collate

from dataporter import PositionDroppedWarning, ResumableDataLoader
from dataporter.errors import OptionError, OptionTypeError
from dataporter.stateful_dataloader import StatefulDataLoader


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3), st.data())
def test_a_sought_pass_is_the_rest_of_its_epoch(length, batch_size, ranks, epoch, data):
    position = data.draw(st.integers(0, length))

    def make(rank):
        placed = {"rank": rank, "world_size": ranks, "tail": "uneven"}
        return ResumableDataLoader(Ids(length), batch_size, shuffle=True, seed=5, **placed)

    order = ResumableDataLoader(Ids(length), 1, shuffle=True, seed=5)
    order.set_epoch(epoch)
    rest = flat(one_pass(order))[position:]
    found = []
    for rank in range(ranks):
        loader = make(rank)
        loader.seek(epoch, position)
        found.append(one_pass(loader))
        assert loader.epoch == epoch
    assert sorted(flat(flat(found))) == sorted(rest)
    if ranks == 1:
        assert flat(found[0]) == rest


@given(st.integers(0, 20), st.integers(1, 4))
def test_a_state_taken_after_a_seek_leads_to_the_same_place(position, batch_size):
    loader = ResumableDataLoader(Augmented(20), batch_size, shuffle=True, seed=5)
    loader.seek(2, position)
    state = loader.state_dict()
    assert (state["epoch"], state["samples_processed"]) == (2, position)
    resumed = ResumableDataLoader(Augmented(20), batch_size, shuffle=True, seed=5)
    resumed.load_state_dict(state)
    assert one_pass(resumed) == one_pass(loader)
    assert one_pass(resumed) == one_pass(loader)  # the epoch after it


def test_nothing_is_read_to_get_there():
    dataset = CountedIds(1000)
    loader = ResumableDataLoader(dataset, 10)
    loader.seek(3, 990)
    assert one_pass(loader) == [list(range(990, 1000))]
    assert dataset.fetched == list(range(990, 1000))


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "engine": "threads"}])
def test_workers_begin_there(options):
    loader = ResumableDataLoader(Ids(20), 5, **options)
    loader.seek(0, 7)
    assert one_pass(loader) == [[7, 8, 9, 10, 11], [12, 13, 14, 15, 16], [17, 18, 19]]


def test_a_live_iterator_goes_on_there():
    loader = ResumableDataLoader(Ids(20), 5)
    running = iter(loader)
    next(running)
    loader.seek(4, 10)
    assert [plain(batch) for batch in running] == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]
    assert loader.epoch == 4


@pytest.mark.parametrize("position", [0, 10])
def test_set_epoch_keeps_a_position_sought_in_that_epoch_and_no_other(position):
    loader = ResumableDataLoader(Ids(20), 5)
    loader.seek(4, position)
    loader.set_epoch(4)
    assert flat(one_pass(loader)) == list(range(position, 20))
    loader.seek(4, position)
    with pytest.warns(PositionDroppedWarning):
        loader.set_epoch(5)
    assert flat(one_pass(loader)) == list(range(20))


def test_a_seek_replaces_a_loaded_position():
    loader = ResumableDataLoader(Ids(20), 5)
    next(iter(loader))
    resumed = ResumableDataLoader(Ids(20), 5)
    resumed.load_state_dict(loader.state_dict())
    resumed.seek(0)
    assert flat(one_pass(resumed)) == list(range(20))


def test_the_end_of_an_epoch_can_be_sought_and_nothing_beyond():
    loader = ResumableDataLoader(Ids(20), 5)
    loader.seek(1, 20)
    assert one_pass(loader) == []
    assert loader.epoch == 1
    assert flat(one_pass(loader)) == list(range(20))
    before = loader.state_dict()
    with pytest.raises(OptionError, match=r"position must be in \[0, 20\], found 21"):
        loader.seek(1, 21)
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1, 0), OptionError),
        ((0, -1), OptionError),
        (("1", 0), OptionTypeError),
        ((0, 1.5), OptionTypeError),
    ],
)
def test_what_is_no_place_is_refused(arguments, error):
    with pytest.raises(error):
        ResumableDataLoader(Ids(20), 5).seek(*arguments)


def test_a_sampler_of_the_users_own_draws_what_comes_before_and_drops_it():
    def make():
        sampler = RandomSampler(range(12), generator=torch.Generator().manual_seed(3))
        return ResumableDataLoader(Ids(12), 4, sampler=sampler, seed=1)

    whole = flat(one_pass(make()))
    loader = make()
    loader.seek(0, 5)
    assert flat(one_pass(loader)) == whole[5:]
    listed = ResumableDataLoader(Ids(12), 4, sampler=[3, 1, 4, 1, 5, 9, 2, 6])
    listed.seek(0, 4)
    assert flat(one_pass(listed)) == [5, 9, 2, 6]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))


@pytest.mark.parametrize(
    ("make", "holder"),
    [
        (lambda: ResumableDataLoader(Stream(), 3), "the dataset"),
        (lambda: ResumableDataLoader(Ids(9), 3, sampler=Stateful(5, 9)), "the sampler"),
    ],
)
def test_where_only_a_state_says_where_samples_are_no_position_can_be_sought(make, holder):
    loader = make()
    with pytest.raises(OptionError, match=rf"position=3 cannot be sought.*{holder}.*position=0"):
        loader.seek(1, 3)
    assert loader.epoch == 0


def test_a_stream_can_be_sought_at_its_start():
    loader = ResumableDataLoader(Stream(), 3)
    next(iter(loader))
    loader.seek(4)
    assert one_pass(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert loader.epoch == 4


def test_torchdatas_loader_seeks_too():
    loader = StatefulDataLoader(range(6), batch_size=2)
    loader.seek(0, 4)
    expected = [batch.tolist() for batch in DataLoader(range(6), 2, collate_fn=default_collate)]
    assert [batch.tolist() for batch in loader] == expected[2:]


def test_a_seek_that_is_refused_leaves_a_loaded_position_as_it_was():
    def make():
        return ResumableDataLoader(Ids(9), 3, sampler=Stateful(5, 9))

    loader = make()
    running = iter(loader)
    next(running)
    state, rest = loader.state_dict(), [plain(batch) for batch in running]
    resumed = make()
    resumed.load_state_dict(state)
    with pytest.raises(OptionError):
        resumed.seek(1, 3)
    assert one_pass(resumed) == rest


def test_a_dataset_that_has_grown_is_sought_in_as_it_is_now():
    data = list(range(10))
    loader = ResumableDataLoader(data, 5)
    one_pass(loader)
    data += range(10, 20)
    loader.seek(1, 15)
    assert one_pass(loader) == [[15, 16, 17, 18, 19]]
