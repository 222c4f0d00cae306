"""Real gloo groups: automatic sharding, equal states, one seed, other world sizes."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from groups import on_ranks
from support import Augmented, Ids, flat, one_pass, plain
from torch.utils.data import IterableDataset

from dataporter import (
    ResumableDataLoader,
    ResumableDistributedSampler,
    ResumableSampler,
    create_resumable_dataloader,
)
from dataporter.stateful_dataloader import StatefulDataLoader

LENGTH = 60


def deliver(_rank: int, state: dict | None, steps: int, options: dict) -> dict[str, Any]:
    loader = ResumableDataLoader(Augmented(LENGTH), shuffle=True, **options)
    if state is not None:
        loader.load_state_dict(state)
    batches = []
    for batch in loader:
        batches.append(plain(batch))
        if len(batches) == steps:
            break
    return {"batches": batches, "state": loader.state_dict(), "length": len(loader)}


def samples(answers: list[dict]) -> dict[int, list[float]]:
    """Sample -> its augmentation, checked to be the same wherever it came twice."""
    found: dict[int, list[float]] = {}
    for ids, columns in flat(answer["batches"] for answer in answers):
        for place, sample in enumerate(ids):
            drawn = [column[place] for column in columns]
            assert found.setdefault(sample, drawn) == drawn
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 3), *(pytest.param(*each, marks=pytest.mark.soak) for each in [(3, 4), (4, 1)])],
)
def test_a_group_shares_the_epoch_and_another_group_finishes_it(before, after):
    first = on_ranks(before, deliver, None, 3, {"batch_size": 4})
    state = first[0]["state"]
    assert all(answer["state"] == state for answer in first)
    assert state["samples_processed"] == before * 4 * 3 == len(samples(first))
    second = on_ranks(after, deliver, state, -1, {"batch_size": 5, "tail": "uneven"})
    seen, rest = samples(first), samples(second)
    assert not seen.keys() & rest.keys()
    assert seen.keys() | rest.keys() == set(range(LENGTH))
    # One process alone, with the seed that rank 0 drew, sees the same order and noise.
    alone = ResumableDataLoader(Augmented(LENGTH), LENGTH, shuffle=True, seed=state["seed"])
    assert {**seen, **rest} == samples([{"batches": one_pass(alone)}])


def all_kinds(rank: int) -> dict[str, Any]:
    world_size = dist.get_world_size()
    made = {
        "auto": ResumableDataLoader(Ids(12), 2, seed=1),
        "distributed": create_resumable_dataloader(Ids(12), 2, strategy="distributed", seed=1),
        "simple": ResumableDataLoader(Ids(12), 2, strategy="simple", seed=1),
        "explicit": ResumableDataLoader(Ids(12), 2, rank=0, world_size=1, seed=1),
        "document": create_resumable_dataloader(
            Ids(12),
            batch_size=2,
            shuffle=True,
            strategy="distributed",
            rank=rank,
            world_size=world_size,
            drop_last=True,
        ),
        "sampler": ResumableDataLoader(Ids(12), 2, sampler=ResumableDistributedSampler(12)),
    }
    return {name: [one_pass(loader), loader.seed] for name, loader in made.items()}


def test_strategies_under_a_group():
    first, second = on_ranks(2, all_kinds)
    for name in ("auto", "distributed", "sampler"):
        assert flat(first[name][0]) == [0, 2, 4, 6, 8, 10]
        assert flat(second[name][0]) == [1, 3, 5, 7, 9, 11]
    for name in ("simple", "explicit"):
        assert flat(first[name][0]) == flat(second[name][0]) == list(range(12))
    assert first["document"][1] == second["document"][1]  # one seed, drawn by rank 0
    both = flat(first["document"][0]) + flat(second["document"][0])
    assert sorted(both) == list(range(12))


class Noise(IterableDataset):
    """A stream that draws: it shows the seed."""

    def __iter__(self):
        yield from torch.rand(4).tolist()


def without_a_seed(_rank: int) -> dict[str, Any]:
    """Loaders that read all data on every rank, each without a seed."""
    sampler = ResumableSampler(LENGTH, shuffle=True)
    made = {
        "given": ResumableDataLoader(Augmented(12), 2, shuffle=True, rank=0, world_size=1),
        "simple": ResumableDataLoader(Augmented(12), 2, shuffle=True, strategy="simple"),
        "torchdata": StatefulDataLoader(Augmented(12), 2, sampler=range(12)),
        "sampler": ResumableDataLoader(Augmented(LENGTH), 2, sampler=sampler),
        "stream": ResumableDataLoader(Noise(), 2, strategy="simple"),
        "lanes": ResumableDataLoader(Noise(), 2, rank=0, world_size=1, lanes=2),
    }
    return {name: [loader.seed, one_pass(loader)] for name, loader in made.items()}


def test_ranks_that_all_read_all_data_agree_on_a_seed_too():
    first, second = on_ranks(2, without_a_seed)
    assert first == second
    assert len({str(seed) for seed, _ in first.values()}) == len(first)  # each was drawn
