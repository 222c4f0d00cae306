"""The user's own loader with other options, replaced on their way into its constructor.

The factory needs no arguments for that: while it runs, every `ResumableDataLoader` that it makes,
or subclass of one, takes the changed options in place of the given ones. This happens only in
processes of the sandbox, where nobody else makes loaders.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from dataporter.errors import FactoryError
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.tools.sandbox.factories import DataModule, Factory, is_data_module, is_made

_OWN = "dataporter.views."  # views have loaders of their own, to look at data once
_WITHOUT_WORKERS = {"persistent_workers": False, "multiprocessing_context": None}


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
