"""Processes that die with the one that started them."""

from __future__ import annotations

import os
import signal
import sys

from dataporter.engine.libc import libc
from dataporter.errors import UnsupportedSystemError

_PR_SET_PDEATHSIG = 1


def check_fork(what: str) -> None:
    """Raise on a system whose processes cannot fork, such as Windows."""
    if not hasattr(os, "fork"):
        msg = (
            f"{what} needs processes that fork, and this system ({sys.platform}) has none. Run it "
            "on Linux."
        )
        raise UnsupportedSystemError(msg)


def die_with(parent: int) -> None:
    """Make the system kill this process when its parent is gone, on Linux."""
    if sys.platform == "linux":
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended while this process was starting
            os._exit(1)
