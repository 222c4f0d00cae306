"""Passes over a sampler of the user's own: its position, its epoch, its state."""

import io

import pytest
import torch
from support import Ids, Stateful, Stateless, flat, one_pass, pass_with_states, passes, plain
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from dataporter import ResumableDataLoader


def make(length: int = 10, batch_size: int = 3, **options) -> ResumableDataLoader:
    return ResumableDataLoader(Ids(length), batch_size, **{"shuffle": True, "seed": 1, **options})


def test_a_stateful_sampler_is_restored_as_of_the_delivered_batch():
    def loader() -> ResumableDataLoader:
        return ResumableDataLoader(Ids(5), 3, sampler=Stateful(5, 10), seed=1)

    reference, states = pass_with_states(loader())
    for done, state in enumerate(states[:-1]):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        resumed = loader()
        resumed.load_state_dict(torch.load(file))
        assert one_pass(resumed) == reference[done:]
        assert len(one_pass(resumed)) == 4


def test_a_sampler_without_state_resumes_under_another_batch_size():
    torch.manual_seed(1)
    loader = ResumableDataLoader(Ids(10), 4, sampler=Stateless(10), seed=3)
    batches = iter(loader)
    seen = plain(next(batches))
    torch.manual_seed(2)
    resumed = ResumableDataLoader(Ids(10), 3, sampler=Stateless(10), seed=3)
    resumed.load_state_dict(loader.state_dict())
    assert seen + flat(one_pass(resumed)) == seen + flat(plain(batch) for batch in batches)


class Varying:
    """A batch sampler of varying batch sizes, without a length, endless if asked."""

    def __init__(self, rounds: int | None) -> None:
        self.rounds = rounds

    def __iter__(self):
        done = 0
        while self.rounds is None or done < self.rounds:
            yield list(range(done % 4 + 1))
            done += 1


@pytest.mark.parametrize("rounds", [9, None])
def test_batch_samplers_without_length_of_varying_size_or_endless_are_exact(rounds):
    loader = ResumableDataLoader(Ids(10), batch_sampler=Varying(rounds))
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    resumed = ResumableDataLoader(Ids(10), batch_sampler=Varying(rounds))
    resumed.load_state_dict(loader.state_dict())
    rest = iter(resumed)
    for _ in range(4):
        assert plain(next(rest)) == plain(next(batches))
    with pytest.raises(TypeError):
        len(resumed)


def test_an_epoch_set_on_the_sampler_is_taken_over_and_keeps_a_loaded_position():
    reference = passes(make(), 4)
    loader = make()
    loader.sampler.set_epoch(3)
    assert one_pass(loader) == reference[3]
    loader.sampler.set_epoch(1)
    batches = iter(loader)
    next(batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    resumed.sampler.set_epoch(1)
    assert one_pass(resumed) == reference[1][1:]


def test_torchs_distributed_sampler_is_told_the_epoch():
    def sampler() -> DistributedSampler:
        return DistributedSampler(Ids(20), num_replicas=2, rank=0, seed=1)

    loader = ResumableDataLoader(Ids(20), 4, sampler=sampler())
    expected = []
    for epoch in range(3):
        torchs = sampler()
        torchs.set_epoch(epoch)
        expected.append(one_pass(DataLoader(Ids(20), 4, sampler=torchs)))
    assert passes(loader, 3) == expected


def test_a_samplers_own_generator_comes_back_to_where_the_epoch_began():
    def loader() -> ResumableDataLoader:
        generator = torch.Generator().manual_seed(3)
        return ResumableDataLoader(Ids(9), 2, sampler=RandomSampler(Ids(9), generator=generator))

    first = loader()
    reference = passes(first, 2)
    batches = iter(first)
    begun = [plain(next(batches)) for _ in range(2)]
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert begun + one_pass(resumed) == begun + [plain(batch) for batch in batches]
    assert one_pass(resumed) == one_pass(first)
    assert reference[0] != reference[1]
