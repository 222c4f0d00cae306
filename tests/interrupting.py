"""Signals at chosen moments: their handler raises as one of dataporter's functions is entered."""

import gc
import itertools
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Tick(BaseException):
    """What a user's timer raises."""


def raise_tick(_signal: int, _frame: FrameType | None) -> None:
    """Handle a signal, as `signal.signal` takes it."""
    raise Tick


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Call something, with SIGALRM as it enters dataporter's function number `at`.

    Return whether it was interrupted. It is a real signal, since some functions delay those.
    """
    entered, before = itertools.count(), sys.gettrace()

    def trace(frame: FrameType, _event: str, _: Any) -> None:
        if "dataporter" in frame.f_code.co_filename and next(entered) == at:
            sys.settrace(None)
            signal.raise_signal(signal.SIGALRM)

    collects = gc.isenabled()
    gc.disable()  # it may call functions of dataporter, and what those raise is lost
    sys.settrace(trace)
    try:
        call()
    except Tick:
        return True
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return False
