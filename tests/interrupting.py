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


def interrupted(call: Callable[[], object], at: int, *, lines_of: str = "") -> bool:
    """Call something, with SIGALRM as it enters dataporter's function number `at`.

    With `lines_of`, the end of a path, it comes before line number `at` that is run of that file:
    name one in which each line calls something, since Python runs no handler between assignments.
    Return whether it was interrupted. It is a real signal, since some functions delay those.
    """
    entered, before = itertools.count(), sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        is_meant = path.endswith(lines_of) if lines_of else "dataporter" in path
        if not is_meant:
            return None
        if event == ("line" if lines_of else "call") and next(entered) == at:
            sys.settrace(None)
            signal.raise_signal(signal.SIGALRM)
        return trace if lines_of else None

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
