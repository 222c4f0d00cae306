"""Processes that die with the one that started them."""

from __future__ import annotations

import os
import signal
import sys

from dataporter.system.libc import libc

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Make the system kill this process when its parent is gone, on Linux."""
    if sys.platform == "linux":
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended while this process was starting
            os._exit(1)
