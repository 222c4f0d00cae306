"""Signals at chosen moments: their handler raises as one of dataporter's functions is entered."""

import gc
import itertools
import signal
import sys
from collections.abc import Callable
from dis import opname
from types import FrameType
from typing import Any


class Tick(BaseException):
    """What a user's timer raises."""


def raise_tick(_signal: int, _frame: FrameType | None) -> None:
    """Handle a signal, as `signal.signal` takes it."""
    raise Tick


def interrupted(call: Callable[[], object], at: int, *, after_calls_in: str = "") -> bool:
    """Call something, with SIGALRM as it enters dataporter's function number `at`.

    With `after_calls_in`, the end of a path, it comes when call number `at` that this file makes
    has returned: that is the other moment at which Python runs handlers. It is a little late for a
    call whose result is returned at once. Return whether it was interrupted. It is a real signal,
    since some functions delay those.
    """
    entered, before = itertools.count(), sys.gettrace()
    calls: dict[FrameType, bool] = {}  # True if a call was what a frame did last

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if after_calls_in and frame.f_code.co_filename.endswith(after_calls_in):
            frame.f_trace_opcodes = True
            is_moment = event == "opcode" and calls.get(frame, False)
            if event == "opcode":
                calls[frame] = opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL")
        else:
            is_moment = event == "call" and not after_calls_in
            is_moment = is_moment and "dataporter" in frame.f_code.co_filename
        if is_moment and next(entered) == at:
            sys.settrace(None)
            signal.raise_signal(signal.SIGALRM)
        return trace if after_calls_in else None

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
