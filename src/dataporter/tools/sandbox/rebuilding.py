"""A loader of torch or torchdata, built again: with the same arguments, or as one of ours."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from dataporter.errors import DataPorterError, FactoryError
from dataporter.law.orders import WeightedOrder
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import ResumableSampler
from dataporter.sources.lanes import is_iterable
from dataporter.tools.sandbox.loaders import fitting

_COPIED = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "in_order"),
)
_BY_DEFAULT = (default_collate, default_convert)


def arguments_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Arguments that make a torch DataLoader like this one over the same dataset.

    >>> arguments_of(DataLoader(range(8), batch_size=4, shuffle=True))["shuffle"]
    True
    """
    copied = {name: getattr(loader, name) for name in _COPIED}
    if loader.batch_size is None and loader.batch_sampler is not None:
        return copied | {"batch_sampler": loader.batch_sampler}
    copied |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return copied if is_iterable(loader.dataset) else copied | _order_of(loader)


def _order_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """`shuffle` where that is enough, else the sampler itself."""
    sampler: Any = loader.sampler
    if isinstance(sampler, ResumableSampler):
        if sampler.topology.world_size == 1 and not isinstance(sampler.order, WeightedOrder):
            return {"shuffle": sampler.shuffle}
    elif type(sampler) is SequentialSampler:
        return {"shuffle": False}
    elif _shuffles_all(sampler) and (
        sampler.generator is loader.generator or _is_torchdatas(sampler)
    ):
        return {"shuffle": True}
    return {"sampler": sampler}


def _shuffles_all(sampler: Any) -> bool:
    if type(sampler) is not RandomSampler and not _is_torchdatas(sampler):
        return False
    return not sampler.replacement and bool(sampler.num_samples == len(sampler.data_source))


def _is_torchdatas(sampler: Any) -> bool:
    kind = type(sampler)
    return kind.__name__ == "RandomSampler" and kind.__module__.startswith("torchdata.")


def rebuilt_as_ours(
    loader: DataLoader[Any], changes: Mapping[str, Any]
) -> tuple[ResumableDataLoader[Any], dict[str, Any]]:
    """Build one of our loaders with the arguments of another; return the options too.

    A `DistributedSampler` becomes this loader's own sharing, and a shuffle of all samples its own
    shuffle, whichever generator drew it.

    >>> ours, options = rebuilt_as_ours(DataLoader(range(8), 4, shuffle=True), {"seed": 3})
    >>> len(ours), options["shuffle"]
    (2, True)
    """
    given = {**arguments_of(loader), "in_order": True}
    if given["collate_fn"] in _BY_DEFAULT:
        given["collate_fn"] = None
    if given["prefetch_factor"] is None:
        del given["prefetch_factor"]
    sampler = given.get("sampler")
    if _shuffles_all(sampler):
        del given["sampler"]
        given["shuffle"] = True
    elif isinstance(sampler, DistributedSampler):
        del given["sampler"]
        given |= {
            "shuffle": sampler.shuffle,
            "seed": sampler.seed,
            "strategy": "distributed",
            "rank": sampler.rank,
            "world_size": sampler.num_replicas,
        }
    bound = inspect.signature(ResumableDataLoader).bind(loader.dataset, **given)
    bound.apply_defaults()
    options = dict(bound.arguments)
    try:
        return ResumableDataLoader(**fitting({**options, **changes})), options
    except DataPorterError as error:
        msg = (
            f"a {type(loader).__module__}.{type(loader).__qualname__} cannot be built again as a "
            f"dataporter.ResumableDataLoader: {error}"
        )
        raise FactoryError(msg) from error
