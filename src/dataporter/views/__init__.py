"""Views: datasets made of datasets, each with an order that is a function of the position."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataporter.views.filtered import where
    from dataporter.views.length_batches import LengthBatches
    from dataporter.views.mixture import Mixture
    from dataporter.views.packing import Packed, collate_packed, packed

__all__ = ["LengthBatches", "Mixture", "Packed", "collate_packed", "packed", "where"]

_MODULES = {
    "LengthBatches": "length_batches",
    "Mixture": "mixture",
    "Packed": "packing",
    "collate_packed": "packing",
    "packed": "packing",
    "where": "filtered",
}


def __getattr__(name: str) -> Any:
    """Import a view when it is first used: porters read orders of views, and no torch."""
    if name not in _MODULES:
        msg = f"module 'dataporter.views' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"dataporter.views.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
