"""A search for values that `torch.load(weights_only=True)` would refuse.

Torch names the refused type but not its location in the checkpoint. `explain` finds it.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from dataporter.errors import OptionTypeError

# Containers that torch loads if it loads their contents.
_PLAIN_CONTAINERS = (dict, OrderedDict, list, tuple, set)


def explain(error: Exception, contents: Mapping[str, Any]) -> None:
    """Raise an error that locates a value torch cannot save or load, if one is found."""
    for name, value in contents.items():
        culprit = _culprit(name, value)
        if culprit is not None:
            msg = (
                f"{culprit} cannot be in a checkpoint, since weights_only=True would not load it. "
                "Allowed are tensors, numbers, strings, bytes, None, and dicts, lists, tuples and "
                "sets of them. Convert it, for example with str(), .item() or torch.as_tensor()."
            )
            raise OptionTypeError(msg) from error


def _culprit(name: str, value: Any) -> str | None:
    """Return the location and type of a value that does not load, or None."""
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
    except Exception:  # noqa: BLE001  a user's pickling may raise anything
        return False
    return True
