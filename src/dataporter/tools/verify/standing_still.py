"""Clock, process id and entropy made to stand still, to see whether data depends on them.

What a sample is made of cannot be seen, but it can be tried: if two runs differ, and with
the clock stopped they do not, it is the clock. The other way round, what seems to stand still
can be moved: the time to another one, objects to other addresses. This is done in processes
that exist for that question alone, before they import the user's code.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from dataporter.tools.verify.clocks import LONG_AGO, going_slow, tell_datetime, telling

# "this time" is what "another time" is to be compared with: the same, but for the time.
Still: TypeAlias = Literal[
    "clock", "process", "entropy", "this time", "another time", "other addresses"
]

_NOW = 1_700_000_000  # seconds; any moment will do


def stand_still(what: Still) -> None:
    """Make something the same at every call, or move it, in this process, from here on."""
    for module, replacements in _REPLACED[what]().items():
        for name, replacement in replacements.items():
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, replacement)
                _replace_imported(original, replacement)


def _replace_imported(original: Any, replacement: Any) -> None:
    """Do the same to `from module import name`, in what the user has imported so far."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and is_users(name):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)


def is_users(module: str) -> bool:
    """Whether a module is neither Python's, nor ours, nor one of those that we build on.

    >>> is_users("torch.utils.data"), is_users("shop.data")
    (False, True)
    """
    package = module.partition(".")[0]
    return package not in _OTHERS and package not in sys.stdlib_module_names


_OTHERS = {"dataporter", "datasets", "numpy", "pandas", "pyarrow", "pytest", "_pytest", "torch"}

_Replaced: TypeAlias = Mapping[ModuleType, Mapping[str, Any]]


def _clock() -> _Replaced:
    durations = ("monotonic", "perf_counter", "process_time", "thread_time")
    stopped: dict[str, Any] = {name: _always(float(_NOW)) for name in durations}
    stopped |= {f"{name}_ns": _always(_NOW * 10**9) for name in durations}
    told = _always(_NOW * 10**9)
    tell_datetime(told)
    made = _always(uuid.UUID(int=_NOW))
    return {
        time: stopped | telling(told),
        uuid: {"uuid1": made, "uuid6": made, "uuid7": made},  # which ask the system
    }


def _time(ago: int) -> _Replaced:
    told = going_slow(ago)
    tell_datetime(told)
    return {time: telling(told)}


def _other_addresses() -> _Replaced:
    # Of each size that Python keeps memory for, so many that what follows lies elsewhere.
    for _ in range(2003):
        _in_the_way.extend([object(), complex(1), *(bytes(size) for size in range(0, 500, 16))])
    return {}


_in_the_way: list[Any] = []


def _process() -> _Replaced:
    always = _always(4242)
    return {os: {"getpid": always, "getppid": always}, threading: {"get_native_id": always}}


def _entropy() -> _Replaced:
    class Seeded(random.Random):
        def __init__(self, x: Any = None) -> None:
            super().__init__(0 if x is None else x)

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the legacy generator is what is meant
    torch.manual_seed(0)

    def urandom(size: int) -> bytes:
        return b"\x5a" * size

    # `secrets` and NumPy's `default_rng()` draw by way of `random`.
    return {os: {"urandom": urandom}, random: {"_urandom": urandom, "Random": Seeded}}


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


_REPLACED: dict[Still, Callable[[], _Replaced]] = {
    "clock": _clock,
    "process": _process,
    "entropy": _entropy,
    "this time": functools.partial(_time, 0),
    "another time": functools.partial(_time, LONG_AGO),
    "other addresses": _other_addresses,
}
