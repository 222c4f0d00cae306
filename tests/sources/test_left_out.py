"""Samples that are left out: all ranks make the same steps and have the same state all the same."""

import pytest
import torch
from groups import on_ranks
from support import Augmented, Ids, plain
from torch.utils.data import DistributedSampler

from dataporter import ResumableDataLoader
from dataporter.errors import EmptyStepError, LeftOutError
from dataporter.views import LengthBatches, where


class Holed(Augmented):
    """Some samples fail, others are left out; all have random numbers."""

    def __init__(self, length: int, failing: set[int], holes: frozenset[int] = frozenset()) -> None:
        super().__init__(length)
        self.failing, self.holes = failing, holes

    def __getitem__(self, index: int) -> tuple[int, list[float]]:
        if index in self.failing:
            raise OSError(f"sample {index} is damaged")
        if index in self.holes:
            raise LeftOutError(index)
        return super().__getitem__(index)


def on_each_rank(dataset, ranks: int = 2, **options) -> list[ResumableDataLoader]:
    options = {"seed": 1, "on_error": "skip", **options}
    return [
        ResumableDataLoader(dataset, 2, rank=rank, world_size=ranks, **options)
        for rank in range(ranks)
    ]


def real_ids(loader, batch) -> list[int]:
    return loader.delivered.real_samples(batch)[0].tolist()


WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "engine": "threads", "randomness": False},
]


# Of 24 samples, rank 0 has 4 and 6 in step 1, rank 1 has 9 and 11 in step 2.
@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize(
    "holed",
    [Holed(24, {4, 6, 9, 11, 13}), Holed(24, set(), frozenset({4, 6, 9, 11, 13}))],
    ids=["failing", "filtered"],
)
def test_ranks_make_the_same_steps_and_have_the_same_state(holed, tail, workers):
    loaders = on_each_rank(holed, tail=tail, **workers)
    seen: list[int] = []
    steps = 0
    for batches in zip(*loaders, strict=True):
        steps += 1
        first, second = (loader.state_dict() for loader in loaders)
        assert first == second
        assert first["batches_processed"] == steps
        for loader, batch in zip(loaders, batches, strict=True):
            assert list(loader.delivered.indices) == batch[0].tolist()
            seen += real_ids(loader, batch)
    assert steps == 6
    assert sorted(seen) == [index for index in range(24) if index not in {4, 6, 9, 11, 13}]


@pytest.mark.parametrize("workers", WORKERS[:2], ids=str)
def test_a_rank_without_a_sample_repeats_another_ranks_as_padding(workers):
    loaders = on_each_rank(Holed(12, {4, 6}), **workers)
    iterators = [iter(loader) for loader in loaders]
    for each in iterators:
        next(each)
    (ids, numbers), (others_ids, others_numbers) = (next(each) for each in iterators)
    assert ids.tolist() == others_ids.tolist() == [5, 7]
    assert plain(numbers) == plain(others_numbers)  # its random numbers are those of the sample
    delivered = loaders[0].delivered
    assert (delivered.position, delivered.positions.tolist()) == (4, [5, 7])
    assert delivered.padding.tolist() == [True, True]
    assert delivered.real_samples((ids, numbers))[0].tolist() == []
    assert plain(loaders[0].batch_at(0, 4)) == plain((ids, numbers))
    assert [skipped.index for skipped in loaders[0].skipped] == [4, 6]


def test_a_state_of_any_rank_at_any_step_goes_on_on_any_number_of_ranks():
    holed = Holed(24, {4, 6, 9, 11, 13, 17, 19})
    for steps in range(7):
        for saving in range(2):
            loader = on_each_rank(holed)[saving]
            batches = iter(loader)
            for _ in range(steps):
                next(batches)
            state = loader.state_dict()
            for ranks in (1, 2, 3):
                rest: list[int] = []
                for resumed in on_each_rank(holed, ranks):
                    resumed.load_state_dict(state)
                    for batch in resumed:
                        rest += real_ids(resumed, batch)
                assert sorted(rest) == sorted({*range(4 * steps, 24)} - holed.failing)


def test_a_step_that_a_filter_leaves_nothing_of_is_passed_over_by_all_ranks():
    few = where(range(40), lambda number: number % 10 in (1, 4), "few", lazy=True)
    loaders = on_each_rank(few, 2)
    seen: list[int] = []
    steps = []
    for batches in zip(*loaders, strict=True):
        states = [loader.state_dict() for loader in loaders]
        assert states[0] == states[1]
        steps.append(states[0]["samples_processed"])
        for loader, batch in zip(loaders, batches, strict=True):
            seen += loader.delivered.real_samples(batch).tolist()
    assert sorted(seen) == [1, 4, 11, 14, 21, 24, 31, 34]
    assert steps == [4, 8, 12, 16, 24, 28, 32, 36]  # 16 to 19 and 36 to 39 have none
    assert loaders[0].skipped == []


def test_a_step_of_which_nothing_can_be_read_is_an_error_that_says_what_to_leave_out():
    holed = Holed(24, {8, 9, 10}, frozenset({11}))
    loader = on_each_rank(holed)[1]
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    with pytest.raises(EmptyStepError, match=r"rank 1 .* position 8 .*loader\.exclude\(0, 8, 12\)"):
        next(batches)
    assert loader.state_dict() == state
    assert next(batches)[0].tolist() == [13, 15]  # who catches it goes on after it
    for rank, resumed in enumerate(on_each_rank(holed)):
        resumed.load_state_dict(state)
        resumed.exclude(0, 8, 12)
        assert next(ids.tolist() for ids, _ in resumed) == [12 + rank, 14 + rank]
    alone = ResumableDataLoader(holed, 4, seed=1, on_error="skip")
    assert [ids.tolist() for ids, _ in alone][1:3] == [[4, 5, 6, 7], [12, 13, 14, 15]]


def test_with_a_sampler_of_ones_own_an_empty_batch_of_one_rank_is_an_error():
    sampler = DistributedSampler(Ids(24), num_replicas=2, rank=0, shuffle=False)
    loader = ResumableDataLoader(Holed(24, {4, 6}), 2, sampler=sampler, on_error="skip", seed=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(EmptyStepError, match="A sampler of your own decides what other ranks have"):
        next(batches)


def test_batches_by_length_of_which_one_rank_has_nothing_are_filled_likewise():
    holed = Holed(24, {4, 5})
    batches = LengthBatches([8] * 24, max_tokens=16, shuffle=False)
    options = {"batch_sampler": batches, "world_size": 2, "seed": 1, "on_error": "skip"}
    loaders = [ResumableDataLoader(holed, rank=rank, **options) for rank in range(2)]
    seen: list[int] = []
    for batches in zip(*loaders, strict=True):
        assert loaders[0].state_dict() == loaders[1].state_dict()
        for loader, batch in zip(loaders, batches, strict=True):
            seen += real_ids(loader, batch)
    assert sorted(seen) == sorted({*range(24)} - {4, 5})


def excluding(rank: int, tail: str) -> list[tuple[int, list[int], dict]]:
    loader = ResumableDataLoader(Ids(23), 2, seed=1, tail=tail)
    loader.exclude(0, 3, 14)
    found = []
    for batch in loader:
        real = loader.delivered.real_samples(batch).tolist()
        found.append((loader.batches_processed, real, loader.state_dict()))
    return found


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_excluded_positions_leave_all_ranks_the_same_steps(tail):
    first, second = on_ranks(2, excluding, tail)
    assert [(number, state) for number, _, state in first] == [
        (number, state) for number, _, state in second
    ]
    seen = [index for _, real, _ in (*first, *second) for index in real]
    assert sorted(seen) == [0, 1, 2, *range(14, 23)]


def training(rank: int) -> tuple[list[list[int]], list[dict]]:
    """Steps that end with a collective call, which all ranks have to make as often."""
    loader = ResumableDataLoader(Holed(24, {4, 6, 9, 11}), 2, seed=1, on_error="skip")
    steps, states = [], []
    for ids, _ in loader:
        total = ids.sum().clone()
        torch.distributed.all_reduce(total)
        steps.append(ids.tolist())
        states.append(loader.state_dict())
    return steps, states


def test_a_training_on_real_ranks_meets_at_every_step():
    (first, states), (second, others) = on_ranks(2, training)
    assert states == others
    assert (len(first), first[1], second[2]) == (6, [5, 7], [8, 10])
