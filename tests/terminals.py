"""Commands run as a person does: in a terminal of 80 columns, and with their output piped."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watching import environment

COMMAND = [sys.executable, "-m", "dataporter"]


def marked(mark: str) -> list[int]:
    """The processes that have a mark in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if f"DATAPORTER_TEST_MARK={mark}\0".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def piped(
    *command: Any, cwd: Path, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess:
    """Run a command to its end, its output piped."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@dataclass
class Terminal:
    """A command in a terminal of its own."""

    pid: int
    descriptor: int
    shown: bytes = b""

    def read_until(self, wanted: bytes) -> None:
        """Read until something has been shown, or the command has ended."""
        with contextlib.suppress(OSError):  # by which a terminal tells that it is closed
            while wanted not in self.shown and (piece := os.read(self.descriptor, 4096)):
                self.shown += piece

    def press(self, key: bytes) -> None:
        os.write(self.descriptor, key)

    def status(self) -> int:
        """Wait for the end, and return the exit status."""
        self.read_until(b"never shown")
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def text(self) -> str:
        """What was shown, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown.decode())

    def widest(self) -> int:
        return max(len(line) for line in re.split(r"[\r\n]+", self.text()))


def in_terminal(*command: Any, cwd: Path, mark: str = "none", **variables: str) -> Terminal:
    """Start a command in a terminal of 80 columns."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        more = {"DATAPORTER_TEST_MARK": mark, "TERM": "xterm-256color", **variables}
        os.execve(sys.executable, list(map(str, command)), {**environment(), **more})  # noqa: S606
    return Terminal(pid, descriptor)
