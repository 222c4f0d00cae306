"""Ending signals as exceptions, so that a command removes its children and files first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

# Windows has only SIGTERM.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class EndedError(BaseException):
    """A signal asked the command to end.

    Like KeyboardInterrupt it is no `Exception`: code that catches those must not catch this.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}.")
        self.status = 128 + number  # as a shell reports a process killed by the signal


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise `EndedError` in the main thread at the first such signal, and ignore later ones.

    A signal that is ignored already stays ignored: `nohup` asks for that.
    """
    if threading.current_thread() is not threading.main_thread():  # other threads get none
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    taken = [number for number in _ENDING if before[number] is signal.SIG_DFL]
    came: list[EndedError] = []

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)  # a second signal would interrupt the cleanup
        came.append(EndedError(number))
        raise came[0]

    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except BaseException as error:
        if came and error is not came[0]:  # an error of the cleanup
            raise came[0] from error
        raise
    finally:
        for number in taken:
            signal.signal(number, before[number])
