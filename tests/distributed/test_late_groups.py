"""Loaders built before their process group, as trainers let one do, share the data all the same."""

from pathlib import Path
from typing import Any

from groups import on_ranks, without_a_group
from support import Ids, flat, one_pass, plain
from torch.utils.data import DistributedSampler, IterableDataset

from dataporter import ResumableDataLoader, ResumableSampler, TopologyError
from dataporter.patched_dataloader import PatchedDataLoader

LENGTH = 22


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def build_early(_rank: int, folder: str) -> dict[str, Any]:
    """Build loaders without a group, and use them under one."""
    with without_a_group(Path(folder) / "second"):
        loader = ResumableDataLoader(Ids(LENGTH), 3, shuffle=True)  # each rank draws another seed
        seeded = ResumableDataLoader(Ids(LENGTH), 3, seed=1, tail="uneven")
        simple = ResumableDataLoader(Ids(LENGTH), 3, seed=1, strategy="simple")
        given = ResumableDataLoader(Ids(LENGTH), 3, sampler=ResumableSampler(LENGTH, seed=1))
        alike = {"rank": 0, "world_size": 1}  # as peers of tensor parallelism are
        peers = [
            ResumableDataLoader(Ids(LENGTH), 3, shuffle=True, strategy=strategy, **alike)
            for strategy in (None, "distributed")
        ]
        lanes = ResumableDataLoader(Stream(), 2, lanes=2)
        before = len(loader)
    try:
        next(iter(lanes))
        refusal = ""
    except TopologyError as error:
        refusal = str(error)
    after = len(loader)
    batches = iter(loader)
    first = [plain(next(batches)) for _ in range(2)]
    return {
        "lengths": [before, after],
        "first": first,
        "state": loader.state_dict(),
        "second": one_pass(loader),
        "seeded": one_pass(seeded),
        "unshared": [one_pass(simple), one_pass(given)],
        "peers": [one_pass(each) for each in peers],
        "refusal": refusal,
        "trainers_leave_it_alone": isinstance(loader.sampler, DistributedSampler),
        "trainers_shard_it": not isinstance(given.sampler, DistributedSampler),
    }


def build_patched_early(rank: int, folder: str) -> dict[str, Any]:
    """Build loaders with samplers without a group, and use them under one."""
    data = Ids(LENGTH)
    torchs = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False)
    with without_a_group(Path(folder) / "second"):
        made = {
            "sampler": PatchedDataLoader(data, 3, sampler=list(range(LENGTH))),
            "batches": PatchedDataLoader(data, batch_sampler=[[1, 2], [3]]),
            "ours": PatchedDataLoader(data, 3, sampler=ResumableSampler(LENGTH)),
            "own": PatchedDataLoader(data, 3),
            "torchs": PatchedDataLoader(data, 3, sampler=torchs),
            "simple": PatchedDataLoader(data, 3, sampler=list(range(LENGTH)), strategy="simple"),
            "whole": PatchedDataLoader(data, 3, sampler=list(range(LENGTH)), shard_samplers=False),
        }
        alone = one_pass(made["sampler"])
    found: dict[str, Any] = {"alone": flat(alone)}
    for name, loader in made.items():
        try:
            found[name] = flat(one_pass(loader))
        except TopologyError as error:
            found[name] = str(error)
    return found


def test_a_patched_loader_whose_sampler_was_not_shared_is_refused_under_a_group(tmp_path):
    first, second = on_ranks(2, build_patched_early, str(tmp_path))
    everything = list(range(LENGTH))
    for answer in (first, second):
        for name in ("sampler", "batches", "ours"):
            assert "now there are 2 ranks" in answer[name]
            assert "Build the loader after" in answer[name]
        assert answer["alone"] == answer["simple"] == answer["whole"] == everything
    for name in ("own", "torchs"):
        assert sorted(first[name] + second[name]) == everything


def deliver(_rank: int, loader: ResumableDataLoader, state: dict) -> list[list[int]]:
    loader.load_state_dict(state)
    return one_pass(loader)


def test_a_loader_built_before_its_group_takes_its_share_exactly_once(tmp_path):
    ranks = on_ranks(2, build_early, str(tmp_path))
    for answer in ranks:
        assert answer["lengths"] == [8, 4]
        assert answer["state"] == ranks[0]["state"]
        assert answer["unshared"] == [one_pass(ResumableDataLoader(Ids(LENGTH), 3))] * 2
        assert answer["peers"] == ranks[0]["peers"]
        assert answer["trainers_leave_it_alone"]
        assert answer["trainers_shard_it"]
        assert "now there are 2 ranks. Build it after" in answer["refusal"]
    state = ranks[0]["state"]
    assert (state["world_size"], state["samples_processed"]) == (2, 12)
    order = flat(one_pass(ResumableDataLoader(Ids(LENGTH), 3, shuffle=True, seed=state["seed"])))
    assert sorted(flat(flat(answer["first"] for answer in ranks))) == sorted(order[:12])
    assert sorted(flat(flat(answer["second"] for answer in ranks))) == list(range(LENGTH))
    assert [flat(answer["seeded"]) for answer in ranks] == [[*range(0, 22, 2)], [*range(1, 22, 2)]]

    # The rest on three ranks, of a loader that travels to them and has a state to load.
    rest = on_ranks(3, deliver, ResumableDataLoader(Ids(LENGTH), 3, shuffle=True), state)
    assert sorted(flat(flat(rest))) == sorted(order[12:] + order[:2])  # padded to 3 x 4
