"""torch's DataPipes: the settings that a loader has to make in them.

torch's own loader tells the pipes of a graph whether to shuffle, by which seed, and which
share is theirs. Here a share is a lane's, and the seed is that of (seed, epoch) on every
lane and rank: shares that are taken after a shuffle neither overlap nor leave a gap.

A `MapDataPipe` is read by index, as any dataset that has indices: its share is the plan's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.data as torch_data

from dataporter.fetch.randomness import EpochKeys
from dataporter.law.keys import key_as_int

try:
    from torch.utils.data import graph, graph_settings
except ImportError:  # a torch without DataPipes
    _KINDS: tuple[type, ...] = ()
else:
    _KINDS = (torch_data.IterDataPipe,)


def is_datapipe(dataset: Any) -> bool:
    """Return True if a dataset is an iterable DataPipe."""
    return isinstance(dataset, _KINDS)


def unwrapped(dataset: Any) -> Any:
    """The pipe in what torch's loader puts around it for pickling; anything else as it is."""
    while type(dataset).__name__ == "_IterDataPipeSerializationWrapper":
        dataset = dataset._datapipe  # noqa: SLF001  torch has no other way to it
    return dataset


def with_shuffling(dataset: Any, shuffle: bool | None) -> Any:
    """Turn the shuffling in a pipe on or off; None leaves it as it is.

    A pipe that is to shuffle and has no shuffler gets one at its end, with torch's warning.
    """
    if shuffle is None or not is_datapipe(dataset):  # other datasets have none
        return dataset
    return graph_settings.apply_shuffle_settings(dataset, shuffle=shuffle)


def is_shared_out(dataset: Any) -> bool:
    """Return True if a pipe takes a share of its data, as `sharding_filter` does."""
    if not is_datapipe(dataset):
        return False
    pipes = graph_settings.get_all_graph_pipes(graph.traverse_dps(unwrapped(dataset)))
    return any(hasattr(pipe, "apply_sharding") for pipe in pipes)


def take_share(dataset: Any, count: int, number: int) -> None:
    """Make a pipe read share `number` of `count`."""
    if is_datapipe(dataset):
        graph_settings.apply_sharding(dataset, count, number)


def seed_pass(dataset: Any, keys: EpochKeys) -> None:
    """Seed what is random in a pipe, for one pass."""
    if is_datapipe(dataset):
        seeds = torch.Generator()
        seeds.manual_seed(key_as_int("datapipe", keys.seed, keys.epoch) >> 1)
        graph_settings.apply_random_seed(dataset, seeds)
