"""The names of Lightning that are used here, from whichever of its two packages is in use.

Its private names are in `loops.py`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from dataporter.requirement import has_version, known_attribute, require

_DISTRIBUTIONS = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}
# Before the first version, Lightning's loops iterate a loader twice at a resume.
TRIED = _LEAST, _NEWEST = ("2.5.3", "2.6.6")
# Before this version, a package's trainer refuses callbacks of the other package.
_TAKES_ANY = "2.6.0"


def packages(imported: Container[str]) -> list[str]:
    """Return the packages that our callbacks must inherit from, first the one in use.

    That is the imported package, or else an installed one. The program may use the other package
    too: if that is installed and accepts only its own callbacks, ours inherit from both.
    """
    present = [name for name, of in _DISTRIBUTIONS.items() if has_version(of, _LEAST)]
    first, *others = sorted(present, key=lambda name: name not in imported)
    return [
        first,
        *(name for name in others if has_version(_DISTRIBUTIONS[name], _LEAST, below=_TAKES_ANY)),
    ]


require(*_DISTRIBUTIONS.values(), at_least=_LEAST, extra="lightning")

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    _packages = [importlib.import_module(name) for name in packages(sys.modules)]
    Callback = type("Callback", tuple(package.Callback for package in _packages), {})
    LightningModule, Trainer = _packages[0].LightningModule, _packages[0].Trainer

_package: Any = sys.modules[Trainer.__module__.partition(".trainer")[0]]


def private(owner: Any, path: str) -> Any:
    """Return an attribute that Lightning does not promise to keep; raise if there is none."""
    release = f"{_package.__name__} {_package.__version__}"
    return known_attribute(owner, path, release=release, tried=TRIED)


__all__ = ["TRIED", "Callback", "LightningModule", "Trainer", "packages", "private"]
