"""State of the global random generators, as a value that loads with `weights_only=True`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


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
