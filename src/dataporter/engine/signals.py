"""Signals in engines and workers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator

# Workers ignore these: the parent decides when a run ends. A terminal's Ctrl-C goes to the whole
# process group, and so do the signals by which schedulers announce the end of a job. Windows has
# only two of them.
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
IGNORED = tuple(getattr(signal, name) for name in _IGNORED if hasattr(signal, name))

EVERY_SIGNAL = frozenset(signal.valid_signals())  # kept, since listing them takes 0.1 ms


@contextlib.contextmanager
def delayed(signals: Iterable[int]) -> Iterator[None]:
    """Delay signals until a block is done that their handlers must not break off."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # may raise for one that came just before
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def name_of_signal(number: int) -> str:
    """Name a signal: SIGKILL, or "signal 35" if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
