"""Ranks: which of them share the data, found here and asked for everywhere else.

    a rank and world size given to a loader   these, and nothing else is asked
    strategy="simple"                         this process has all data
    a trainer's word                          `believe`, which our integrations call
    Lightning's mesh                          ranks along its dimension `data_parallel` share
    a process group                           all ranks share
    none                                      this process has all data

The ranks that share are not always those of the process group: ranks of one tensor-, context- or
pipeline-parallel group need the same batches. Lightning's `ModelParallelStrategy` builds torch's
loaders again, with a sampler for the right rank. Ours share by themselves and are left alone, so
they take the same ranks from its mesh, in Fabric too. Where another mesh cuts the process group and
nobody has said which of its dimensions share, `check_who_shares` raises. All ranks of the process
group agree on a drawn seed, whoever shares.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist

from dataporter.errors import OptionError, TopologyError
from dataporter.law import Ranks, Topology

Strategy: TypeAlias = Literal["auto", "unified", "simple", "distributed"]

# Dimensions whose ranks read different samples, by the names that torch, its trainers and their
# documentation give them. A dimension without a name is called dim_0, dim_1, ...
_SHARING = {
    *("data", "data_parallel", "ddp", "dp", "dp_replicate", "dp_shard", "fsdp", "hsdp"),
    *("replicate", "shard", "default"),
}

# The seed of ranks that have no process group to agree on one.
_AGREED_SEED = 0

# What a trainer has said, and of which process group.
_said: list[tuple[Any, Topology]] = []


def find_ranks(
    strategy: Strategy | None = None, rank: int | None = None, world_size: int | None = None
) -> Ranks:
    """Find the ranks that share a loader's data.

    None, "auto" and "unified" take those given, else those of the process group, else this process
    alone. "distributed" raises where that is all. "simple" never shares.
    """
    given = given_ranks(strategy, rank, world_size)
    if strategy == "simple":  # one rank alone may iterate, as for validation: it agrees with nobody
        return Ranks(Topology())
    if given is not None:
        return Ranks(given, seed_is_open=given == Topology() and group_topology() is None)
    found = data_topology()
    if found is None and strategy == "distributed":
        msg = (
            "strategy='distributed' requires a rank, but no process group is initialized and "
            "no rank and world_size were given. Call torch.distributed.init_process_group() "
            "before building the loader, or pass rank= and world_size=."
        )
        raise TopologyError(msg)
    return Ranks(found or Topology(), now=data_topology, seed_is_open=found is None)


def given_ranks(
    strategy: Strategy | None, rank: int | None, world_size: int | None
) -> Topology | None:
    """Check what was given to say which rank this is; the rank, None if nothing says it."""
    if not isinstance(strategy, str | None) or strategy not in (None, *get_args(Strategy)):
        names = ", ".join(map(repr, (None, *get_args(Strategy))))
        msg = f"strategy must be one of {names}, found {strategy!r}."
        raise OptionError(msg)
    if rank is None and world_size is None:
        return None
    if strategy == "simple":
        msg = (
            f"strategy='simple' conflicts with rank={rank} and world_size={world_size}: it "
            "never shares the data. Remove them, or use strategy='distributed'."
        )
        raise OptionError(msg)
    if rank is None or world_size is None:
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        value = rank if world_size is None else world_size
        msg = f"{given}={value} was given without {missing}. Pass both or neither."
        raise OptionError(msg)
    return Topology(rank=rank, world_size=world_size)


def choose_seed(ranks: Ranks, generator: torch.Generator | None = None) -> int:
    """Choose a seed that every rank of the run agrees on.

    It is drawn from `generator`, by default torch's global one. With a process group, rank 0 sends
    its seed to all ranks, also where each reads all data: processes that work on one model, as in
    tensor parallelism, need the same batches. Ranks given by number alone cannot communicate and
    use 0, as torch's DistributedSampler does.
    """
    seed = drawn_seed(generator) if is_several() or ranks.topology.world_size == 1 else _AGREED_SEED
    return agreed(seed)


def drawn_seed(generator: torch.Generator | None = None) -> int:
    """Draw a seed from a torch generator, the global one by default."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def agreed(seed: int) -> int:
    """Return rank 0's seed on every rank. All ranks of a process group must call this."""
    if not is_several():
        return seed
    chosen = [seed]
    dist.broadcast_object_list(chosen, src=0)
    return chosen[0]


def is_several() -> bool:
    """Return True if a process group of several ranks is up."""
    group = group_topology()
    return group is not None and group.world_size > 1


def group_topology() -> Topology | None:
    """Return this process's rank in torch's process group, or None without a group."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return Topology(rank=dist.get_rank(), world_size=dist.get_world_size())


def data_topology() -> Topology | None:
    """Return this process's rank among those that share the data, or None without a group."""
    group = group_topology()
    if group is None or group.world_size == 1:
        return group
    return _believed() or _along_lightnings_mesh(group) or group


def believe(topology: Topology) -> None:
    """Take a trainer's word for who shares the data, as long as this process group is up."""
    group = group_topology()
    _said[:] = [] if group in (None, topology) else [(dist.group.WORLD, topology)]


def check_who_shares() -> None:
    """Raise if a mesh cuts the process group and nothing says which of its ranks share the data."""
    group = group_topology()
    if group is None or group.world_size == 1 or _believed() or _along_lightnings_mesh(group):
        return
    dimensions = _dimensions()
    cut = any(
        (here.world_size > 1 and name not in _SHARING and not name.startswith("dim_"))
        or (here.world_size == 1 and name == "dp")  # the rest of the mesh is all other ranks
        for name, here in dimensions
    )
    if not cut:
        return
    names = ", ".join(sorted(f"{name}: {here.world_size}" for name, here in dimensions))
    msg = (
        f"the ranks that share the data are unknown: a mesh ({names}) cuts this process group of "
        f"{group.world_size} ranks, and ranks of a tensor-, context- or pipeline-parallel group "
        "need the same batches. Pass this process's place in the data-parallel dimension to the "
        'loader: rank=mesh["dp"].get_local_rank(), world_size=mesh["dp"].size().'
    )
    raise TopologyError(msg)


def _believed() -> Topology | None:
    for group, topology in _said:
        if group is dist.group.WORLD:
            return topology
    return None


def _along_lightnings_mesh(group: Topology) -> Topology | None:
    dimensions = _dimensions()
    data = [here for name, here in dimensions if name == "data_parallel"]
    tensor = [here for name, here in dimensions if name == "tensor_parallel"]
    # A dimension of all ranks has no group of its own. Of meshes laid one after the other it is
    # unknown which is in use.
    size = tensor[0].world_size if tensor else group.world_size
    known = len(data) == 1 and len(tensor) < 2 and data[0].world_size * size == group.world_size  # noqa: PLR2004
    return data[0] if known and len(dimensions) == len(data) + len(tensor) else None


def _dimensions() -> list[tuple[str, Topology]]:
    """Return the dimensions of all meshes: names, and this process's ranks in them."""
    # Torch lists process groups nowhere else. A mesh's are described by its dimensions' names.
    groups = dist.distributed_c10d._world.pg_map  # noqa: SLF001
    found = {
        (group.group_desc.removeprefix("mesh_"), group.rank(), group.size())
        for group in groups
        if group.group_desc.startswith("mesh_")
    }
    return [(name, Topology(rank=rank, world_size=size)) for name, rank, size in sorted(found)]
