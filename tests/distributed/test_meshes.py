"""Meshes over a process group: which ranks share the data is known, or asked for."""

from collections.abc import Callable
from typing import Any

from groups import on_ranks
from support import Ids, flat, one_pass
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DistributedSampler, IterableDataset

from dataporter import ResumableDataLoader, ResumableDistributedSampler, TopologyError

LENGTH = 12


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def answer(make: Callable[[], Any]) -> Any:
    try:
        return flat(one_pass(make()))
    except TopologyError as error:
        return str(error)


def under_meshes(_rank: int, shape: tuple[int, int]) -> dict[str, Any]:
    """Read under a mesh of data-parallel dimensions, then under one that has another too."""
    early = ResumableDataLoader(Ids(LENGTH), 3)
    lanes = ResumableDataLoader(Stream(), 2, lanes=4)
    init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))
    init_device_mesh("cpu", shape)  # its dimensions have no names
    found = {"all share": answer(lambda: ResumableDataLoader(Ids(LENGTH), 3))}
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    replicas, rank = mesh["dp"].size(), mesh["dp"].get_local_rank()
    told = {"rank": rank, "world_size": replicas}
    sampler = DistributedSampler(Ids(LENGTH), replicas, rank, shuffle=False)
    made: dict[str, Callable[[], Any]] = {
        "early": lambda: early,
        "late": lambda: ResumableDataLoader(Ids(LENGTH), 3, strategy="distributed"),
        "lanes": lambda: lanes,
        "sampler": lambda: [ResumableDistributedSampler(LENGTH)],
        "told": lambda: ResumableDataLoader(Ids(LENGTH), 3, **told),
        "told lanes": lambda: ResumableDataLoader(Stream(), 2, lanes=4, **told),
        "simple": lambda: ResumableDataLoader(Ids(LENGTH), 3, strategy="simple"),
        "own sampler": lambda: ResumableDataLoader(Ids(LENGTH), 3, sampler=sampler),
        "own stream": lambda: ResumableDataLoader(Stream(), 2),
    }
    return found | {name: answer(make) for name, make in made.items()}


def test_ranks_of_an_unknown_mesh_are_asked_for_and_those_that_are_told_share():
    for shape in ((2, 2), (1, 2)):
        dp, tp = shape
        ranks = on_ranks(dp * tp, under_meshes, shape)
        assert sorted(flat([each["all share"] for each in ranks])) == [*range(LENGTH)]
        for number, found in enumerate(ranks):
            for name in ("early", "late", "lanes", "sampler"):
                assert found[name].startswith("the ranks that share the data are unknown: a mesh")
                assert 'rank=mesh["dp"].get_local_rank()' in found[name]
            share = [*range(number // tp, LENGTH, dp)]
            assert found["told"] == found["own sampler"] == share
            assert len(found["told lanes"]) == 16 // dp
            assert found["simple"] == [*range(LENGTH)]
            assert len(found["own stream"]) == 4
