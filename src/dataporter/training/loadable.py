"""Values that `torch.load(weights_only=True)` loads: random generators, and a search for others.

Torch names the type that it refuses but not its location in the checkpoint. `explain` finds it.
"""

from __future__ import annotations

import io
import random
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from dataporter.errors import OptionTypeError


def get_rng_state() -> dict[str, Any]:
    """Return the states of Python's, NumPy's, torch's and, if CUDA is in use, all GPU generators.

    >>> state = get_rng_state()
    >>> first = random.random()
    >>> set_rng_state(state)
    >>> random.random() == first
    True
    """
    # Reading the state would initialize an unused CUDA, which takes memory on the device.
    uses_cuda = torch.cuda.is_initialized()
    return {
        "python": random.getstate(),
        "numpy": _as_builtins(np.random.get_state(legacy=False)),  # noqa: NPY002  the global one
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if uses_cuda else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the generators. States of missing devices are ignored."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002  the global one
    torch.set_rng_state(state["torch"])
    for device, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(device_state, device)


def _as_builtins(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_builtins(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


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
