"""PatchedDataLoader: its document's snippets, its seed, its shares of ranks."""

from typing import Any

import pytest
import torch
from groups import on_ranks
from streamed import StatefulShards
from support import Augmented, Ids, Stateful, flat, one_pass, pass_with_states, passes, plain
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from dataporter import (
    ResumableDataLoader,
    ResumableDistributedSampler,
    ResumableSampler,
    StatefulDataLoader,
)
from dataporter.errors import StateMismatchError, UncheckedStateWarning
from dataporter.patched_dataloader import PatchedDataLoader
from dataporter.patched_dataloader import PatchedDataLoader as DataLoader


def test_the_snippet():
    loader = DataLoader(list(range(15)), batch_size=5, shuffle=True)

    first = []
    for i, data in enumerate(loader):
        first.append(plain(data))
        if i == 2:
            state = loader.state_dict()
            break

    loader.load_state_dict(state)
    rest = [plain(data) for data in loader]

    assert sorted(flat(first)) == list(range(15))
    assert rest == []
    assert sorted(flat(one_pass(loader))) == list(range(15))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_resumes_anywhere(num_workers):
    options = {"batch_size": 4, "shuffle": True, "num_workers": num_workers}
    batches, states = pass_with_states(DataLoader(Augmented(30), **options))
    for k in (1, 3, len(batches)):
        resumed = DataLoader(Augmented(30), **options)
        resumed.load_state_dict(states[k])
        assert one_pass(resumed) == batches[k:]  # with its augmentation


def test_the_shuffle_needs_no_seed_to_be_the_same_and_every_epoch_differs():
    torch.manual_seed(1)
    first = passes(DataLoader(Ids(40), 8, shuffle=True), 3)
    torch.manual_seed(2)
    assert passes(DataLoader(Ids(40), 8, shuffle=True, seed=1024), 3) == first
    assert first[0] != first[1] != first[2]
    assert one_pass(DataLoader(Ids(40), 8, shuffle=True, seed=1)) != first[0]
    assert issubclass(PatchedDataLoader, TorchDataLoader)


def test_without_proceeding_an_epoch_begins_again():
    loader = DataLoader(Ids(12), 3, shuffle=True)
    batches, states = pass_with_states(loader)
    loader.load_state_dict(states[2], proceed=False)
    assert one_pass(loader) == batches
    stream = DataLoader(StatefulShards([9, 3]), 2, lanes=2)
    batches, states = pass_with_states(stream)
    stream.load_state_dict(states[2], proceed=False)
    assert passes(stream, 2) == [batches, batches]
    assert stream.epoch == 1


def test_one_ranks_state_serves_all_whose_shares_of_batches_have_other_sizes():
    batches = [[0, 1, 2], [3], [4, 5], [6], [7, 8, 9, 10], [11]]

    def make(rank: int) -> DataLoader:
        return DataLoader(Ids(12), batch_sampler=batches, rank=rank, world_size=2)

    first = make(0)
    delivered = iter(first)
    for _ in range(2):
        next(delivered)
    for rank in (0, 1):
        loader = make(rank)
        loader.load_state_dict(first.state_dict())
        assert passes(loader, 2) == [batches[4 + rank :: 2], batches[rank::2]]


def weighted() -> DataLoader:
    generator = torch.Generator().manual_seed(3)
    sampler = WeightedRandomSampler(range(1, 13), 12, generator=generator)
    return DataLoader(Ids(12), 3, sampler=sampler)


def test_without_proceeding_an_epoch_begins_again_with_its_samplers_generator():
    loader = weighted()
    first, (*states, ended) = pass_with_states(loader)
    second, (*later, _) = pass_with_states(loader)
    following = one_pass(loader)
    assert first != second
    for state, whole, after in ((states[2], first, second), (later[2], second, following)):
        again = weighted()
        again.load_state_dict(state, proceed=False)
        assert passes(again, 2) == [whole, after]
    with pytest.raises(StateMismatchError, match="epoch 0 cannot begin again"):
        weighted().load_state_dict(ended, proceed=False)


def test_without_proceeding_a_sampler_with_a_state_does_not_begin_anywhere():
    def make() -> DataLoader:
        return DataLoader(Ids(12), 3, sampler=Stateful(12, 9))

    batches, states = pass_with_states(make())
    again = make()
    with pytest.raises(StateMismatchError, match="epoch 0 cannot begin again"):
        again.load_state_dict(states[2], proceed=False)
    again.load_state_dict(states[0], proceed=False)
    assert one_pass(again) == batches


def shared(rank: int) -> dict[str, Any]:
    data = Ids(11)
    made = {
        "own": DataLoader(data, 2, shuffle=True),
        "sampler": DataLoader(data, 2, sampler=list(range(11))),
        "batches": DataLoader(
            data, batch_sampler=BatchSampler(SequentialSampler(data), 2, drop_last=False)
        ),
        "torchs": DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False)),
        "ours": DataLoader(data, 2, sampler=ResumableDistributedSampler(11), seed=0),
        "plain": DataLoader(data, 2, sampler=ResumableSampler(11, shuffle=True)),
        "whole": DataLoader(data, 2, sampler=list(range(11)), shard_samplers=False),
    }
    found = {}
    for name, loader in made.items():
        batches, states = pass_with_states(loader)
        loader.load_state_dict(states[1])
        assert one_pass(loader) == batches[1:], name
        assert len(loader) == len(batches)
        found[name] = flat(batches)
    return found


def test_ranks_that_were_told_share_samplers_too():
    def ranks(sampler):
        return [
            DataLoader(Ids(10), 2, sampler=sampler(), rank=rank, world_size=2) for rank in (0, 1)
        ]

    for sampler in (lambda: list(range(10)), lambda: ResumableSampler(10, shuffle=True)):
        first, second = (flat(one_pass(loader)) for loader in ranks(sampler))
        assert len(first) == len(second) == 5
        assert sorted(first + second) == list(range(10))
    whole = [
        DataLoader(Ids(10), 2, sampler=list(range(10)), **options)
        for options in (
            {"strategy": "simple"},
            {"rank": 1, "world_size": 2, "shard_samplers": False},
        )
    ]
    assert [flat(one_pass(loader)) for loader in whole] == [list(range(10))] * 2


def test_a_group_shares_samplers_too():
    first, second = on_ranks(2, shared)
    for name in ("own", "ours", "plain", "torchs", "sampler"):
        assert len(first[name]) == len(second[name]) == 6
        assert sorted(set(first[name] + second[name])) == list(range(11))
    assert first["sampler"] == [0, 2, 4, 6, 8, 10]
    assert second["sampler"] == [1, 3, 5, 7, 9, 0]
    assert first["batches"] == [0, 1, 4, 5, 8, 9]
    assert second["batches"] == [2, 3, 6, 7, 10]
    assert first["whole"] == second["whole"] == list(range(11))


@pytest.mark.parametrize("kind", [PatchedDataLoader, StatefulDataLoader, ResumableDataLoader])
def test_a_warning_of_a_load_shows_the_users_own_line_whichever_loader_it_is(kind):
    place = {"epoch": 0, "samples_processed": 2, "batches_processed": 1, "rng_state": None}
    with pytest.warns(UncheckedStateWarning) as caught:
        kind(range(6), 2).load_state_dict(place)
    assert caught[0].filename == __file__
