"""Conditions that a run takes place under: clock, process id, entropy, addresses, hash seed.

Nobody can see what a sample is computed from, but it can be tried. If two runs differ, and do
not differ with the clock stopped, the cause is the clock. So a process that exists for this
question alone changes its conditions before it imports the user's code.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch

from dataporter.errors import MissingExtraError
from dataporter.requirement import require

# Another year, month, weekday, hour, minute and second, odd or even; and the past, in which
# nothing has expired that is valid now.
_LONG_AGO = dt.timedelta(days=400, hours=5, minutes=17, seconds=43.210987)
_STOPPED = 1_700_000_000  # seconds since 1970; any moment will do
_PROCESS_ID = 4242


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Everything around the user's code that the sandbox can vary or hold still."""

    interpreter: int = 0  # its number; each has another hash seed
    clock: Literal["running", "stopped", "long ago"] = "running"
    process_id: Literal["own", "fixed"] = "own"
    entropy: Literal["fresh", "fixed"] = "fresh"
    addresses: Literal["usual", "moved"] = "usual"
    copy: int = 0  # another process under the same conditions


USUAL = Conditions()


@functools.cache
def why_clock_must_run() -> str:
    """Return why the clock cannot be stopped or moved here; empty if it can."""
    try:
        # Earlier versions move time.monotonic() as well, which measures durations.
        require("time-machine", at_least="3", extra="cli")
    except MissingExtraError as error:
        return str(error)
    return ""


def establish(conditions: Conditions) -> None:
    """Change this process to these conditions, from here on. The hash seed was set at its start."""
    if conditions.clock != "running":
        _set_clock(stops=conditions.clock == "stopped")
    if conditions.process_id == "fixed":
        _replace(os, dict.fromkeys(("getpid", "getppid"), _always(_PROCESS_ID)))
        _replace(threading, {"get_native_id": _always(_PROCESS_ID)})
    if conditions.entropy == "fixed":
        _fix_entropy()
    if conditions.addresses == "moved":
        _move_addresses()


def _set_clock(*, stops: bool) -> None:
    # It would import pytest, which takes half a second and which users' code may look for.
    has_pytest = sys.modules.setdefault("pytest", None)  # type: ignore[arg-type]
    import time_machine  # noqa: PLC0415  of an extra that the proof itself does not need

    if has_pytest is None:
        del sys.modules["pytest"]
    time_machine.travel(_STOPPED if stops else -_LONG_AGO, tick=not stops).start()
    asctime, ctime = time.asctime, time.ctime  # the two that ask the system
    _replace(
        time,
        {
            "asctime": lambda given=None: asctime(given or time.localtime()),
            "ctime": lambda given=None: ctime(time.time() if given is None else given),
        },
    )
    if stops:
        durations = ("monotonic", "perf_counter", "process_time", "thread_time")
        _replace(time, dict.fromkeys(durations, _always(float(_STOPPED))))
        _replace(time, {f"{name}_ns": _always(_STOPPED * 10**9) for name in durations})
        made = _always(uuid.UUID(int=_STOPPED))  # which would count on without the clock
        _replace(uuid, dict.fromkeys(("uuid1", "uuid6", "uuid7"), made))


def _fix_entropy() -> None:
    class Seeded(random.Random):
        def __init__(self, x: Any = None) -> None:
            super().__init__(0 if x is None else x)

    def urandom(size: int) -> bytes:
        return b"\x5a" * size

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the legacy generator is meant
    torch.manual_seed(0)
    # `secrets` and NumPy's `default_rng()` draw by way of `random`.
    _replace(os, {"urandom": urandom})
    _replace(random, {"_urandom": urandom, "Random": Seeded})


_in_the_way: list[Any] = []


def _move_addresses() -> None:
    """Occupy memory of every size, so that the objects that follow lie elsewhere."""
    for _ in range(2003):
        _in_the_way.extend([object(), complex(1), *(bytes(size) for size in range(0, 500, 16))])
    for _ in range(101):
        _in_the_way.extend([bytes(size) for size in range(512, 4096, 112)])


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _replace(module: ModuleType, replacements: Mapping[str, Any]) -> None:
    """Replace functions of a module, also where the user has imported them by name."""
    for name, replacement in replacements.items():
        original = getattr(module, name, None)
        if original is None:
            continue
        setattr(module, name, replacement)
        for importer, other in list(sys.modules.items()):
            if isinstance(other, ModuleType) and is_users_module(importer):
                for attribute, value in list(vars(other).items()):
                    if value is original:
                        setattr(other, attribute, replacement)


def is_users_module(module: str) -> bool:
    """Tell whether a module is neither Python's, nor ours, nor one that we build on.

    >>> is_users_module("torch.utils.data"), is_users_module("shop.data")
    (False, True)
    """
    package = module.partition(".")[0]
    return package not in _NOT_THE_USERS and package not in sys.stdlib_module_names


_NOT_THE_USERS = {
    *("dataporter", "datasets", "numpy", "pandas", "psutil", "pyarrow", "pytest", "_pytest"),
    *("time_machine", "torch"),
}
