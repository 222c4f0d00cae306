"""What a checkpoint may hold: what `torch.load` takes with `weights_only=True`.

torch says which type it does not take, not where that is. Here it is found.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from dataporter.errors import OptionTypeError

# What is loaded whatever is in it, if that is.
_PLAIN_CONTAINERS = (dict, OrderedDict, list, tuple, set)


def explain(error: Exception, contents: Mapping[str, Any]) -> None:
    """Raise an error that says where what torch does not save or load is, if it is found."""
    for name, value in contents.items():
        culprit = _culprit(name, value)
        if culprit is not None:
            msg = (
                f"{culprit} cannot be in a checkpoint: it would not load with weights_only=True, "
                "which takes tensors, numbers, strings, bytes, None, and dicts, lists, tuples and "
                "sets of those. Convert it, for example with str(), .item() or torch.as_tensor()."
            )
            raise OptionTypeError(msg) from error


def _culprit(name: str, value: Any) -> str | None:
    """Where in a value something is that does not load, and what it is."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple | set):
        parts = enumerate(value)
    for key, part in parts:
        culprit = _culprit(f"{name}[{key!r}]", part)
        if culprit is not None:
            return culprit
    if type(value) in _PLAIN_CONTAINERS or _loads(value):
        return None
    return f"{name}, a {type(value).__module__}.{type(value).__qualname__},"


def _loads(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # noqa: BLE001  whatever its pickling does
        return False
    return True
