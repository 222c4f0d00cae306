"""The one of Lightning's two packages that is in use: they are the same, under two names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _name() -> str:
    """The package that the program has imported, else the one that it could."""
    for name in _NAMES:
        if name in sys.modules:
            return name
    is_there = importlib.util.find_spec("lightning") is not None
    return _NAMES[0] if is_there else _NAMES[1]


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    # Either package's trainer takes callbacks of the other: it only calls their methods.
    _package = importlib.import_module(_name())
    Callback, LightningModule, Trainer = (
        _package.Callback,
        _package.LightningModule,
        _package.Trainer,
    )

__all__ = ["Callback", "LightningModule", "Trainer"]
