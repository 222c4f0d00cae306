"""Processes of our own, started by exec: the porter, and the one that indexes files elsewhere.

A porter serves whoever is connected to it, so it may end long after, or before, the object that
started it is gone. None stays as a zombie: starts, ends of datasets and Python's garbage collector
look for those that have ended.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from typing import IO, Any

_started: set[Process] = set()  # by this process, and not known to have ended


class Process(subprocess.Popen[bytes]):
    """A process that may outlive its object, and this process."""

    def __del__(self) -> None:
        """Do nothing, where `Popen` warns of a process that still runs."""


def collect_ended() -> None:
    """Take note of processes that have ended, so that the system forgets them."""
    for process in list(_started):
        if process.poll() is not None:
            _started.discard(process)


def _at_collection(phase: str, info: dict[str, Any]) -> None:
    # The youngest objects are collected too often to look each time.
    if _started and phase == "stop" and info["generation"]:
        collect_ended()


gc.callbacks.append(_at_collection)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_started.clear)  # they are no children of a fork


def start_process(
    module: str,
    channel: socket.socket,
    given: IO[bytes],
    words: IO[bytes] | None,
    *,
    is_apart: bool,
) -> Process:
    """Run a module with the descriptor of a socket as its argument.

    `given` is its standard input, and `words` keeps what it prints; None prints it here. A process
    that is apart does not see Ctrl-C.
    """
    collect_ended()
    process = Process(
        [sys.executable, "-m", module, str(channel.fileno())],
        stdin=given,
        stdout=subprocess.DEVNULL,
        stderr=words,
        pass_fds=[channel.fileno()],
        cwd="/",
        env=_environment(),
        start_new_session=is_apart,
    )
    _started.add(process)
    return process


def _environment() -> dict[str, str]:
    """Return an environment in which a process finds the modules that this process finds."""
    path = os.pathsep.join(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))  # noqa: PTH100  '' is the current folder
    # Threads of linear algebra would only cost time to start.
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}


def last_words(words: IO[bytes] | None) -> str:
    """Return the last line that a process printed, as a sentence."""
    if words is None:
        return ""
    words.seek(0)
    lines = words.read().decode(errors="replace").strip().splitlines()
    return f"Its last words: {lines[-1]} " if lines else ""
