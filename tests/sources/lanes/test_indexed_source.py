"""Datasets that are read by index and have a state, in the order of a user's sampler."""

import pytest
import torch
from support import one_pass
from torch.utils.data import Dataset, RandomSampler

from dataporter import ResumableDataLoader


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


def made(seed):
    dataset = Counting()
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    return ResumableDataLoader(dataset, batch_size=2, sampler=sampler)


@pytest.mark.parametrize("leave", [lambda one: one.set_epoch(1), lambda one: one.seek(1)])
def test_a_loaded_place_that_is_given_up_leaves_the_sampler_as_it_was(leave):
    saved = made(seed=1)
    next(iter(saved))
    loader, unloaded = made(seed=2), made(seed=2)
    loader.load_state_dict(saved.state_dict())
    for each in (loader, unloaded):
        leave(each)
    assert one_pass(loader) == one_pass(unloaded)
