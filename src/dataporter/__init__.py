"""A drop-in torch DataLoader that restarts at exactly the next sample.

from dataporter import ResumableDataLoader

loader = ResumableDataLoader(dataset, batch_size=32, shuffle=True)
state = loader.state_dict()       # anywhere in the loop
loader.load_state_dict(state)     # in a new process, on any number of ranks

The names in `__all__` are imported when they are first used, so that `import dataporter` and
worker processes pay only for the modules that they need. All errors are in `dataporter.errors`.
"""

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dataporter import errors
from dataporter.errors import DataPorterError, DataPorterWarning, StateError, WorkerError

if TYPE_CHECKING:
    from dataporter.errors import *  # noqa: F403  as `__getattr__` finds them
    from dataporter.fetch.randomness import sample_rng
    from dataporter.law.datasets import OrderedDataset
    from dataporter.law.orders import Order
    from dataporter.patched_dataloader import PatchedDataLoader
    from dataporter.resumable_dataloader import ResumableDataLoader, create_resumable_dataloader
    from dataporter.samplers import ResumableDistributedSampler, ResumableSampler
    from dataporter.stateful_dataloader import StatefulDataLoader

__version__ = "0.1.0"

# Who uses the package decides what becomes of its log: without handlers of theirs, nothing.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "DataPorterError",
    "DataPorterWarning",
    "Order",
    "OrderedDataset",
    "PatchedDataLoader",
    "ResumableDataLoader",
    "ResumableDistributedSampler",
    "ResumableSampler",
    "StateError",
    "StatefulDataLoader",
    "WorkerError",
    "__version__",
    "create_resumable_dataloader",
    "sample_rng",
]

_MODULES = {
    "Order": "dataporter.law.orders",
    "OrderedDataset": "dataporter.law.datasets",
    "PatchedDataLoader": "dataporter.patched_dataloader",
    "ResumableDataLoader": "dataporter.resumable_dataloader",
    "ResumableDistributedSampler": "dataporter.samplers",
    "ResumableSampler": "dataporter.samplers",
    "StatefulDataLoader": "dataporter.stateful_dataloader",
    "create_resumable_dataloader": "dataporter.resumable_dataloader",
    "sample_rng": "dataporter.fetch.randomness",
}

# Modules that the documentation names. All others are free to change.
_ROOMS = (
    *("converters", "datasets", "errors", "patched_dataloader", "profiling"),
    *("samplers", "shards", "stateful_dataloader", "strategies", "testing", "trainers"),
    *("training", "utils", "views"),
)

if not TYPE_CHECKING:  # a type checker would take every name for one of this package

    def __getattr__(name: str) -> object:
        """Find a public name, an error or a submodule when it is first used."""
        if name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
        elif isinstance(vars(errors).get(name), type):  # exported here up to version 0.1
            value = getattr(errors, name)
        elif not name.startswith("_") and find_spec(f"dataporter.{name}") is not None:
            value = import_module(f"dataporter.{name}")
        else:
            msg = f"module 'dataporter' has no attribute {name!r}"
            raise AttributeError(msg)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Names for an editor: `__all__`, and the rooms that users import from."""
    return sorted({*__all__, *_ROOMS})
