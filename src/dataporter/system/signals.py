"""Signals in engines and workers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

# Workers ignore these: the parent decides when a run ends. A terminal's Ctrl-C goes to the whole
# process group, and so do the signals by which schedulers announce the end of a job. Windows has
# only two of them.
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
IGNORED = tuple(getattr(signal, name) for name in _IGNORED if hasattr(signal, name))

# Signals that a training handles, by raising something or by saving a state.
HANDLED = (*IGNORED, *(getattr(signal, name) for name in ("SIGALRM",) if hasattr(signal, name)))
EVERY_SIGNAL = frozenset(signal.valid_signals())  # kept, since listing them takes 0.1 ms


@contextlib.contextmanager
def delayed(signals: Iterable[int]) -> Iterator[None]:
    """Delay signals until a block is done that their handlers must not break off."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with _handlers_delayed():
            # May raise for a signal that came just before.
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _handlers_delayed() -> Iterator[None]:
    """Call Python's handlers after the block only, and then all of them.

    A mask is a thread's own. If other threads do not block a signal, as those of a notebook's
    kernel, one of them receives it, and Python runs the handler in the main thread all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no handler runs here
        return
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    received: list[tuple[int, FrameType | None]] = []
    try:
        for number in HANDLED:
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, lambda *arguments: received.append(arguments))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _call(handlers, received)


def _call(
    handlers: Mapping[int, Callable[[int, FrameType | None], Any]],
    received: list[tuple[int, FrameType | None]],
) -> None:
    """Call the handlers of all signals that were received, also if one of them raises."""
    if received:
        number, frame = received.pop(0)
        try:
            handlers[number](number, frame)
        finally:
            _call(handlers, received)


def name_of_signal(number: int) -> str:
    """Name a signal: SIGKILL, or "signal 35" if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
