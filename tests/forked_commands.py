"""`dataporter` as a process of its own, forked from one that has imported torch.

Such a process has what a new one has: a session, a terminal or pipes, a folder, an environment. In
/proc it has the environment of the one that it is a fork of, so `terminals.marked` finds only the
processes that it starts.
"""

import contextlib
import fcntl
import json
import os
import pty
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import forked_scripts
from terminals import Terminal

_COMMAND = """
import fcntl, json, os, sys, tempfile, termios

first, folder, variables, *sys.argv = sys.argv[1:]
os.chdir(folder)
os.environ.update(json.loads(variables))
tempfile.tempdir = None  # as the variables have it
sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))
if os.isatty(1):
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)  # its Ctrl-C interrupts this process
exec(first)
from dataporter.tools.cli import start

start()
"""


def piped(*arguments: object, cwd: Path, first: str = "", **variables: str) -> forked_scripts.Ended:
    """Run a command to its end, its output piped; `first` is done in its process before."""
    return forked_scripts.run_to_end(_COMMAND, *_asked(arguments, cwd, first, variables))


@dataclass
class ForkedTerminal(Terminal):
    """A forked command in a terminal of its own."""

    script: forked_scripts.Script | None = None

    def status(self) -> int:
        """Wait for the end, and return the exit status."""
        self.read_until(b"never shown")
        assert self.script is not None
        return self.script.wait()


@contextlib.contextmanager
def in_terminal(
    *arguments: object, cwd: Path, mark: str = "none", first: str = "", **variables: str
) -> Iterator[ForkedTerminal]:
    """Run a command in a terminal of 80 columns."""
    more = {"DATAPORTER_TEST_MARK": mark, "TERM": "xterm-256color", **variables}
    ours, its = pty.openpty()
    try:
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        asked = _asked(arguments, cwd, first, more)
        with forked_scripts.started_on(its, _COMMAND, *asked) as script:
            os.close(its)
            yield ForkedTerminal(script.pid, ours, script=script)
    finally:
        os.close(ours)


def _asked(
    arguments: tuple[object, ...], cwd: Path, first: str, variables: dict[str, str]
) -> list[object]:
    return [first, cwd, json.dumps(variables), "dataporter", *arguments]
