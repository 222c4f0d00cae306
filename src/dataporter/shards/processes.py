"""Processes of our own, started by exec: the porter, and the one that indexes files elsewhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import IO


def start_process(
    module: str,
    channel: socket.socket,
    given: IO[bytes],
    words: IO[bytes] | None,
    *,
    is_apart: bool,
) -> subprocess.Popen[bytes]:
    """Run a module with the descriptor of a socket as its argument.

    `given` is its standard input, and `words` keeps what it prints; None prints it here. A process
    that is apart does not see Ctrl-C.
    """
    return subprocess.Popen(  # noqa: S603  our own interpreter
        [sys.executable, "-m", module, str(channel.fileno())],
        stdin=given,
        stdout=subprocess.DEVNULL,
        stderr=words,
        pass_fds=[channel.fileno()],
        cwd="/",
        env=_environment(),
        start_new_session=is_apart,
    )


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
