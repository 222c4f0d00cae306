"""The user's factory: found by its name, and called to make a loader, with other options if needed.

Options are replaced on their way into the constructor, so the factory needs no arguments for that:
while it runs, every `ResumableDataLoader` that it makes, or subclass of one, takes the changed
options in place of the given ones. This happens only in processes of the sandbox, where nobody
else makes loaders. A loader of torch or torchdata is built again as one of ours.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias, TypeGuard

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from dataporter.arguments import did_you_mean
from dataporter.errors import DataPorterError, FactoryError, OptionError
from dataporter.law.orders import WeightedOrder
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import ResumableSampler
from dataporter.sources.fingerprint import dataset_length
from dataporter.sources.lanes import has_lanes, is_iterable

_OWN = "dataporter.views."  # views have loaders of their own, to look at data once
_WITHOUT_WORKERS = {"persistent_workers": False, "multiprocessing_context": None}
_COPIED = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "in_order"),
)
_BY_DEFAULT = (default_collate, default_convert)


class DataModule(Protocol):
    """An object that makes its loaders when asked to, such as Lightning's DataModule."""

    def train_dataloader(self) -> Any: ...


Factory: TypeAlias = Callable[[], Any] | DataLoader[Any] | DataModule


def is_made(factory: Any) -> TypeGuard[DataLoader[Any] | DataModule]:
    """Tell whether this is a loader or a DataModule already, not a function that makes one."""
    return isinstance(factory, DataLoader) or is_data_module(factory)


def is_data_module(made: Any) -> TypeGuard[DataModule]:
    """Tell whether this makes its loaders when asked to."""
    return callable(getattr(made, "train_dataloader", None)) and not isinstance(made, type)


def check_name(name: str) -> None:
    """Raise unless this has the form `package.module:function` or `path/to/file.py:function`."""
    module, _, function = name.partition(":")
    is_path = module.endswith(".py")
    is_found = Path(module).is_file() if is_path else _is_dotted(module)
    if is_found and _is_dotted(function):
        return
    hint = f" There is no file {module}." if is_path and not is_found else ""
    msg = (
        "the factory is named as package.module:function or path/to/file.py:function, found "
        f"{name!r}.{hint}"
    )
    raise OptionError(msg)


def _is_dotted(name: str) -> bool:
    return all(step.isidentifier() for step in name.split("."))


def import_by_name(name: str) -> Any:
    """Import what `package.module:function` or `path/to/file.py:function` names."""
    module_name, _, attribute = name.partition(":")
    is_path = module_name.endswith(".py")
    found: Any = _import_file(Path(module_name)) if is_path else _import(module_name)
    before = ""
    for step in attribute.split("."):
        if not hasattr(found, step):
            names = [each for each in dir(found) if not each.startswith("_")]
            functions = [each for each in names if callable(getattr(found, each, None))]
            hint = did_you_mean(before + step, [before + each for each in functions])
            msg = f"{module_name} has no {attribute!r}.{hint} Name a function that makes a loader."
            raise FactoryError(msg)
        found = getattr(found, step)
        before += f"{step}."
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise
        msg = (
            f"there is no module {missing!r} in the folders where Python looks for packages. Check "
            "the name. If it is right, name the file, as in path/to/file.py:function, add the "
            "module's folder to PYTHONPATH, or install it."
        )
        raise FactoryError(msg) from error


def _import_file(file: Path) -> ModuleType:
    """Import a file as part of its package, or as a module beside which others are found.

    Its folder comes first in the path, as with `python file.py`. Workers that are spawned find the
    module there by its name.
    """
    file = Path(os.path.abspath(file))  # noqa: PTH100  a link is imported by its own name
    module = file.parent if file.name == "__init__.py" else file.with_suffix("")
    root = module.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    sys.path.insert(0, str(root))
    name = ".".join(module.relative_to(root).parts)
    if _is_dotted(name):
        found = sys.modules.get(name) or importlib.import_module(name)
        if os.path.abspath(found.__file__ or "") == str(file):  # noqa: PTH100  see above
            return found
    # No module has that name, or one that Python has imported before has it.
    name = "named_by_its_path_" + re.sub(r"\W", "_", name)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        msg = f"Python cannot import {file}."
        raise FactoryError(msg)
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def check_factory(factory: Any) -> None:
    """Raise unless this is a loader or a DataModule, or can be called without arguments."""
    if is_made(factory):
        return
    if not callable(factory):
        msg = (
            f"the factory cannot be called: its type is {type(factory).__name__}. Name a function "
            "that takes no arguments and returns the loader."
        )
        raise FactoryError(msg)
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some builtins have no signature
        return
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        repr(each.name)
        for each in parameters
        if each.default is inspect.Parameter.empty and each.kind not in several
    ]
    if required:
        name = getattr(factory, "__name__", type(factory).__name__)
        msg = (
            f"{name}() must work without arguments, but it requires {', '.join(required)}. Give "
            "its arguments defaults, or name a function that calls it with them."
        )
        raise FactoryError(msg)


def pickled(factory: Factory) -> bytes | None:
    """Pickle a factory for another interpreter; None if that could not import it.

    A loader is not pickled, since its dataset may be large.
    """
    if is_made(factory) or getattr(factory, "__module__", None) == "__main__":
        return None
    try:
        packed = pickle.dumps(factory)
        pickle.loads(packed)  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  whatever its pickling raises
        return None
    return None if b"__main__" in packed else packed


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A loader, described for other processes; each tool adds what it needs to know."""

    loader: str  # with its library, unless it is one of ours
    dataset: str
    samples: int | None
    batch_size: int | None
    num_workers: int
    is_iterable: bool
    has_lanes: bool

    def line(self, batches: str, *more: str) -> str:
        """Describe the loader in a line."""
        samples = "" if self.samples is None else f"{self.samples:,} samples"
        return ", ".join(
            filter(None, (f"{self.loader} over {self.dataset}", samples, batches, *more))
        )


def described(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the fields of a `Description`.

    >>> given = described(DataLoader(range(5000), batch_size=32, num_workers=2))
    >>> Description(**given).line("batches of 32", "2 workers")
    "torch's DataLoader over range, 5,000 samples, batches of 32, 2 workers"
    """
    kind, dataset = type(loader), loader.dataset
    is_ours = isinstance(loader, ResumableDataLoader)
    library = "" if is_ours else f"{kind.__module__.split('.')[0]}'s "
    return {
        "loader": library + kind.__name__,
        "dataset": type(dataset).__name__,
        "samples": dataset_length(dataset),
        "batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        "is_iterable": is_iterable(dataset),
        "has_lanes": has_lanes(dataset),
    }


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
