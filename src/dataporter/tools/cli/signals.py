"""Signals that would end a command, as exceptions: so its children and files go before it does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

# Windows has only the first.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class EndedError(BaseException):
    """A signal asked the command to end.

    Like an interrupt it is no `Exception`: whoever takes those goes on, and this must not.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}.")
        self.status = 128 + number  # what a shell shows of a process that the signal has killed


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Have these signals raise `EndedError` in the main thread, once; what follows is ignored.

    One that is ignored already stays so: `nohup` asks for that.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone gets them
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    taken = [number for number in _ENDING if before[number] is signal.SIG_DFL]
    came: list[EndedError] = []

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)  # a second one would interrupt the cleaning up
        came.append(EndedError(number))
        raise came[0]

    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except BaseException as error:
        if came and error is not came[0]:  # of the cleaning up, for one of a closed terminal
            raise came[0] from error
        raise
    finally:
        for number in taken:
            signal.signal(number, before[number])
