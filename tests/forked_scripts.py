"""Scripts that run to their end in an interpreter of their own, which need not import torch anew.

One interpreter imports once what the scripts need, and forks for each of them. A script is the
last thing that its process does, so it ends as any interpreter ends. A folder that stands `first`
in PYTHONPATH gets an interpreter of its own, for what a sitecustomize.py in it changes.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from watching import environment

_SERVER = """
import gc, json, os, signal, socket, sys, types

gc.disable()
import numpy, torch
import dataporter, support, watching
gc.freeze()
gc.enable()

with socket.socket(fileno=int(sys.argv[1])) as asked:
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 2**20, 2)
        if not message:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        asked.send(b"%d" % pid)
        asked.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os.setsid()
signal.alarm(200)  # longer than a test may take, so that none stays if the tests are killed
for target, descriptor in enumerate(descriptors, start=1):
    os.dup2(descriptor, target)
    os.close(descriptor)
source, *sys.argv = json.loads(message)
main = sys.modules["__main__"] = types.ModuleType("__main__")
if sys.argv[0] != "-c":
    main.__file__ = sys.argv[0]
exec(compile(source, sys.argv[0], "exec"), vars(main))
"""


class Script:
    """A script that runs: its pid, its output as it comes, and its exit status."""

    def __init__(self, asked: socket.socket, stdout: IO[str], stderr: IO[str]) -> None:
        self.stdout, self.stderr = stdout, stderr
        self._asked = asked
        self._code: int | None = None
        self.pid = int(self._answer(60))

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        return self._code

    def wait(self, seconds: float = 60) -> int:
        """Wait for its end; the exit status, or what signal killed it as a negative number."""
        if self._code is None:
            self._code = int(self._answer(seconds))
        return self._code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _answer(self, seconds: float) -> bytes:
        if not select.select([self._asked], [], [], seconds)[0]:
            raise TimeoutError(f"not within {seconds} s")
        answer = self._asked.recv(100)
        assert answer, "the interpreter of scripts has ended"
        return answer


# Begins a script that is root in a name space of its own, with a file system in memory.
_MOUNT = """
import ctypes, os, subprocess
_user, _group = os.getuid(), os.getgid()
assert ctypes.CDLL(None).unshare(0x1002_0000) == 0  # CLONE_NEWUSER | CLONE_NEWNS
for _name, _map in [
    ("setgroups", "deny"), ("uid_map", f"0 {{_user}} 1"), ("gid_map", f"0 {{_group}} 1")
]:
    with open(f"/proc/self/{{_name}}", "w") as _file:
        _file.write(_map)
subprocess.run(["mount", "-t", "tmpfs", "-o", {options!r}, "tmpfs", {folder!r}], check=True)
"""


def mounting(folder: Path | str, options: str) -> str:
    """Source with which a script begins that has a tmpfs of its own at a folder."""
    return _MOUNT.format(folder=str(folder), options=options)


@functools.cache
def _server(first: Path | None) -> socket.socket:
    """Start the interpreter that forks; the socket by which it is asked to."""
    ours, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
    variables = environment()
    if first is not None:
        variables["PYTHONPATH"] = f"{first}:{variables['PYTHONPATH']}"
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(its.fileno())],
        env=variables,
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
    )
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


@contextlib.contextmanager
def started(path: Path, *arguments: object, first: Path | None = None) -> Iterator[Script]:
    """Run a script of which the output is read as it comes; none of its processes stays."""
    out, its_out = os.pipe()
    err, its_err = os.pipe()
    with open(out) as stdout, open(err) as stderr:  # noqa: PTH123  descriptors have no path
        try:
            script = _start(_asked(path, arguments), its_out, its_err, stdout, stderr, first)
        finally:
            os.close(its_out)
            os.close(its_err)
        try:
            yield script
        finally:
            _end(script)


@contextlib.contextmanager
def started_on(descriptor: int, source: str, *arguments: object) -> Iterator[Script]:
    """Run a script whose output goes to a descriptor; none of its processes stays."""
    # Nobody reads the script's own files.
    asked = _asked(source, arguments)
    script = _start(asked, descriptor, descriptor, sys.stdout, sys.stderr, None)
    try:
        yield script
    finally:
        _end(script)


class Ended(NamedTuple):
    """A script that has ended."""

    status: int
    out: str
    err: str


def run_to_end(
    script: str | Path, *arguments: object, timeout: float = 80, first: Path | None = None
) -> Ended:
    """Run a script to its end, as a file or as `python -c` runs its source."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        asked = _asked(script, arguments)
        started = _start(asked, stdout.fileno(), stderr.fileno(), stdout, stderr, first)
        try:
            status = started.wait(timeout)
        finally:
            _end(started)
        for file in (stdout, stderr):
            file.seek(0)
        return Ended(status, stdout.read(), stderr.read())


def run(
    script: str | Path, *arguments: object, timeout: float = 80, first: Path | None = None
) -> str:
    """Run a script to its end, in silence; what it printed."""
    ended = run_to_end(script, *arguments, timeout=timeout, first=first)
    assert (ended.status, ended.err) == (0, ""), ended.out + ended.err
    return ended.out


def _asked(script: str | Path, arguments: tuple[object, ...]) -> list[object]:
    if isinstance(script, Path):
        return [script.read_text(), script, *arguments]
    return [script, "-c", *arguments]


def _end(script: Script) -> None:
    if script.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(script.pid, signal.SIGKILL)
        script.wait()


def _start(
    asked: list[object],
    its_out: int,
    its_err: int,
    stdout: IO[str],
    stderr: IO[str],
    first: Path | None,
) -> Script:
    message = json.dumps([str(part) for part in asked]).encode()
    server = _server(first)
    socket.send_fds(server, [message], [its_out, its_err])
    return Script(server, stdout, stderr)
