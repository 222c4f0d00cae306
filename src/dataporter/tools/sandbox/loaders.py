"""The user's own loader with other options; or one of torch or torchdata, built as one of ours.

Options are replaced on their way into the constructor, so the factory needs no arguments for that:
while it runs, every `ResumableDataLoader` that it makes, or subclass of one, takes the changed
options in place of the given ones. This happens only in processes of the sandbox, where nobody
else makes loaders.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
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
from dataporter.tools.sandbox.factories import DataModule, Factory, is_data_module, is_made

_OWN = "dataporter.views."  # views have loaders of their own, to look at data once
_WITHOUT_WORKERS = {"persistent_workers": False, "multiprocessing_context": None}
_COPIED = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "in_order"),
)
_BY_DEFAULT = (default_collate, default_convert)


def make_loader(
    factory: Factory, changes: Mapping[str, Any]
) -> tuple[DataLoader[Any], dict[str, Any] | None]:
    """Call a factory; return its loader and the options that the factory gave to it.

    A DataModule's is the loader for training. The options of a loader that is not ours are None.
    """
    given: dict[int, dict[str, Any]] = {}  # by the loader's id
    original = ResumableDataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self).__module__.startswith(_OWN):
            original(self, *args, **kwargs)
            return
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            original(self, *args, **kwargs)  # raises an error that says more
            raise
        bound.apply_defaults()
        options = dict(bound.arguments)
        del options["self"]
        given[id(self)] = options
        original(self, **fitting({**options, **changes}))

    ResumableDataLoader.__init__ = init  # type: ignore[method-assign]  # restored below
    try:
        made: Any = factory if is_made(factory) else factory()  # type: ignore[operator]  # as checked
        loader = _for_training(made) if is_data_module(made) else made
    finally:
        ResumableDataLoader.__init__ = original  # type: ignore[method-assign]
    if not isinstance(loader, DataLoader):
        kind = type(loader)
        found = "None" if loader is None else f"a {kind.__module__}.{kind.__qualname__}"
        who = (
            f"train_dataloader() of {type(made).__name__}" if loader is not made else "the factory"
        )
        advice = "Return the loader that it makes."
        if isinstance(loader, Mapping | Sequence) or hasattr(loader, "flattened"):
            advice = "Name a function that returns one of its loaders."
        msg = f"{who} returned {found}, not a loader. {advice}"
        raise FactoryError(msg)
    if isinstance(loader, ResumableDataLoader) and id(loader) not in given:  # options are unknown
        msg = (
            "the factory returned a loader that it had not made: a new one is needed at every "
            "call. Make the loader inside of the function."
        )
        raise FactoryError(msg)
    return loader, given.get(id(loader))


def described(
    loader: str, dataset: str, samples: int | None, batches: str, workers: str, *more: str
) -> str:
    """Describe a loader in a line.

    >>> described("DataLoader", "Photos", 5000, "batches of 32", "2 workers")
    'DataLoader over Photos, 5,000 samples, batches of 32, 2 workers'
    """
    size = "" if samples is None else f"{samples:,} samples"
    return ", ".join(filter(None, (f"{loader} over {dataset}", size, batches, workers, *more)))


def name_of(loader: DataLoader[Any]) -> str:
    """Return the name of a loader, with its library unless it is one of ours."""
    kind = type(loader)
    if isinstance(loader, ResumableDataLoader):
        return kind.__name__
    return f"{kind.__module__.split('.')[0]}'s {kind.__name__}"


def _for_training(module: DataModule) -> Any:
    """Return the training loader of a DataModule, prepared as Lightning's Trainer prepares it."""
    for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        hook = getattr(module, name, None)
        if callable(hook):
            hook(*arguments)
    return module.train_dataloader()


def fitting(options: dict[str, Any]) -> dict[str, Any]:
    """Drop options that would contradict the changed ones."""
    if options["num_workers"] == 0:
        options |= _WITHOUT_WORKERS
    if options["strategy"] == "distributed" and options["rank"] is None:
        options |= {"rank": 0, "world_size": 1}  # the sandbox has no process group
    return options


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
