"""Datasets that are read by index and have a state, in the order of a user's sampler."""

import pytest
import torch
from support import flat, one_pass
from torch.utils.data import Dataset, RandomSampler

from dataporter import ResumableDataLoader
from dataporter.errors import StateMismatchError, StateMismatchWarning


class Counting(Dataset):
    """Its state is the number of samples that were read."""

    read = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.read += 1
        return index

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


def on_rank(rank, world_size):
    return ResumableDataLoader(Counting(), 2, seed=1, rank=rank, world_size=world_size)


@pytest.mark.parametrize("after", [1, 3])
def test_another_number_of_ranks_cannot_go_on_from_the_state_of_one_dataset(after):
    saved = on_rank(0, 2)
    next(iter(saved))
    loader = on_rank(0, after)
    with pytest.raises(StateMismatchError, match=f"saved on 2 ranks, this run has {after}"):
        loader.load_state_dict(saved.state_dict())
    assert loader.state_dict() == on_rank(0, after).state_dict()


def test_the_state_of_a_dataset_is_of_its_rank_alone():
    saved = on_rank(1, 2)
    batches = iter(saved)
    next(batches)
    state = saved.state_dict()
    assert "as rank 1 of 2; batch size and workers may differ" in saved.explain().needs()
    rest = one_pass(batches)
    own, other = on_rank(1, 2), on_rank(0, 2)
    own.load_state_dict(state)
    assert one_pass(own) == rest
    with pytest.raises(StateMismatchError, match=r"that of rank 1 alone.*load each on its own"):
        other.load_state_dict(state)
    with pytest.warns(StateMismatchWarning, match="rank 1 alone"):
        other.load_state_dict(state, strict=False)
    assert other.batches_processed == 1


def made(seed):
    dataset = Counting()
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    return ResumableDataLoader(dataset, batch_size=2, sampler=sampler)


@pytest.mark.filterwarnings("ignore::dataporter.PositionDroppedWarning")
@pytest.mark.parametrize("leave", [lambda one: one.set_epoch(1), lambda one: one.seek(1)])
def test_a_loaded_place_that_is_given_up_leaves_the_sampler_as_it_was(leave):
    saved = made(seed=1)
    next(iter(saved))
    loader, unloaded = made(seed=2), made(seed=2)
    loader.load_state_dict(saved.state_dict())
    for each in (loader, unloaded):
        leave(each)
    assert one_pass(loader) == one_pass(unloaded)


def test_positions_that_a_state_excludes_stay_excluded_in_later_states():
    before = ResumableDataLoader(range(8), 2)
    before.exclude(0, 4, 6)
    loader = ResumableDataLoader(Counting(), 2)
    loader.load_state_dict(before.state_dict(), strict=False)
    next(iter(loader))
    assert loader.excluded == [(0, 4, 6)]
    resumed = ResumableDataLoader(Counting(), 2)
    resumed.load_state_dict(loader.state_dict())
    assert flat(one_pass(resumed)) == [2, 3, 6, 7]
