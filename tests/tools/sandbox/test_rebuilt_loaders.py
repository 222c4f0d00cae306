"""Loaders of torch and torchdata, built again with the same arguments or as one of ours."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from dataporter import FactoryError, ResumableDataLoader
from dataporter.tools.sandbox.factories import arguments_of, rebuilt_as_ours


def test_arguments_are_those_of_the_loader():
    loader = DataLoader(range(8), 4, shuffle=True, drop_last=True, num_workers=2, prefetch_factor=3)
    copied = arguments_of(loader)
    assert (copied["batch_size"], copied["shuffle"], copied["drop_last"]) == (4, True, True)
    assert (copied["num_workers"], copied["prefetch_factor"]) == (2, 3)
    assert arguments_of(ResumableDataLoader(range(8), 4, shuffle=True))["shuffle"] is True
    assert arguments_of(ResumableDataLoader(range(8), 4))["shuffle"] is False
    some = RandomSampler(range(8), num_samples=4)
    assert arguments_of(DataLoader(range(8), 4, sampler=some))["sampler"] is some


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # by torchdata
@pytest.mark.parametrize("kind", ["shuffle=True", "a sampler with a generator", "torchdata's"])
def test_a_shuffle_of_all_samples_becomes_our_own(kind):
    own = torch.Generator()
    loaders = {
        "shuffle=True": lambda: DataLoader(range(8), 4, shuffle=True, generator=own),
        "a sampler with a generator": lambda: DataLoader(
            range(8), 4, sampler=RandomSampler(range(8), generator=own)
        ),
        "torchdata's": lambda: StatefulDataLoader(range(8), 4, shuffle=True),
    }
    ours, options = rebuilt_as_ours(loaders[kind](), {"num_workers": 0})
    assert (options["shuffle"], options["sampler"], options["collate_fn"]) == (True, None, None)
    assert sorted(torch.cat(list(ours)).tolist()) == list(range(8))


def test_a_distributed_sampler_becomes_our_own_sharing():
    sampler = DistributedSampler(range(8), num_replicas=2, rank=1, shuffle=True, seed=5)
    ours, options = rebuilt_as_ours(DataLoader(range(8), 2, sampler=sampler), {})
    assert (options["sampler"], options["seed"], options["shuffle"]) == (None, 5, True)
    assert ours.state_dict()["world_size"] == 2
    assert len(torch.cat(list(ours))) == 4


def test_a_batch_sampler_and_an_own_collate_fn_are_kept():
    batches = BatchSampler(range(8), 3, drop_last=False)
    ours, options = rebuilt_as_ours(DataLoader(range(8), batch_sampler=batches, collate_fn=sum), {})
    assert options["batch_sampler"] is batches
    assert list(ours) == [3, 12, 13]


def test_arguments_that_ours_refuses_are_an_error_that_says_so():
    loader = DataLoader(range(8), 4)
    with pytest.raises(FactoryError, match=r"cannot be built again as a dataporter\.Res.*seed"):
        rebuilt_as_ours(loader, {"seed": -1})
