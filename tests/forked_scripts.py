"""Scripts that run to their end in an interpreter of their own, which need not import torch anew.

One interpreter imports once what the scripts need, and forks for each of them: one for those that
need torch, one more for each framework that is named, and one for each folder that stands `first`
in PYTHONPATH, for what a sitecustomize.py in it changes. A script is the last thing that its
process does, so it ends as any interpreter ends.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from watching import environment

_SERVER = """
import ctypes, gc, importlib, json, os, select, signal, socket, sys, types

gc.disable()
import numpy, torch
import cheap_forks, dataporter, support, watching

for module in sys.argv[2:]:
    importlib.import_module(module)
cheap_forks.keep_for_forks()
gc.enable()
asked, running = socket.socket(fileno=int(sys.argv[1])), {}
libc = ctypes.CDLL(None)
events, pid = select.poll(), None
events.register(asked, select.POLLIN)
while pid != 0:
    for descriptor, _ in events.poll():
        if descriptor in running:
            ended, answers = running.pop(descriptor)
            events.unregister(descriptor)
            os.close(descriptor)
            answers.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1]))
            answers.close()
            continue
        message, descriptors, _, _ = socket.recv_fds(asked, 2**20, 3)
        if not message:
            sys.exit()
        answers = descriptors.pop()
        pid = os.fork()
        if pid == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        answers = socket.socket(fileno=answers)
        answers.send(b"%d" % pid)
        watched = libc.syscall(434, pid, 0)  # pidfd_open, which simulated systems do not have
        running[watched] = pid, answers
        events.register(watched, select.POLLIN)
for descriptor in running:
    os.close(descriptor)
    running[descriptor][1].close()
os.close(answers)
asked.close()
os.setsid()
signal.alarm(200)  # longer than a test may take, so that none stays if the tests are killed
for target, descriptor in enumerate(descriptors, start=1):
    os.dup2(descriptor, target)
    os.close(descriptor)
source, variables, *sys.argv = json.loads(message)
os.environ.update(variables)
sys.modules["__main__"] = types.ModuleType("__main__")
if sys.argv[0] != "-c":
    sys.modules["__main__"].__file__ = sys.argv[0]
# No name is left that holds the module, which ends before those that it has imported.
exec(compile(source, sys.argv[0], "exec"), vars(sys.modules["__main__"]))
"""


LIGHTNING = ("lightning.pytorch", "dataporter.trainers.lightning")
TRANSFORMERS = ("dataporter.trainers.transformers", "dataporter.trainers.accelerate")


class Ended(NamedTuple):
    """A script that has ended."""

    status: int
    out: str
    err: str


class Script:
    """A script that runs: its pid, its output as it comes, and its exit status."""

    def __init__(self, answers: socket.socket, stdout: IO[str], stderr: IO[str]) -> None:
        self.stdout, self.stderr = stdout, stderr
        self._answers = answers
        self._code: int | None = None
        self.pid = int(self._answer(100))  # a framework may have to be imported

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        return self._code

    def wait(self, seconds: float = 60) -> int:
        """Wait for its end; the exit status, or what signal killed it as a negative number."""
        if self._code is None:
            self._code = int(self._answer(seconds))
            self._answers.close()
        return self._code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def ended(self, seconds: float = 80) -> Ended:
        """Wait for the end of a script that writes to files; what it has written."""
        status = self.wait(seconds)
        for file in (self.stdout, self.stderr):
            file.seek(0)
        return Ended(status, self.stdout.read(), self.stderr.read())

    def _answer(self, seconds: float) -> bytes:
        if not select.select([self._answers], [], [], seconds)[0]:
            raise TimeoutError(f"not within {seconds} s")
        answer = self._answers.recv(100)
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
def _server(first: Path | None, *imports: str) -> socket.socket:
    """Start an interpreter that forks; the socket by which it is asked to."""
    ours, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
    variables = environment()
    if first is not None:
        variables["PYTHONPATH"] = f"{first}:{variables['PYTHONPATH']}"
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(its.fileno()), *imports],
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
            asked = _asked(path, arguments)
            script = _start(asked, its_out, its_err, stdout, stderr, first=first)
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
    script = _start(asked, descriptor, descriptor, sys.stdout, sys.stderr)
    try:
        yield script
    finally:
        _end(script)


@contextlib.contextmanager
def started_to_files(
    script: Path, *arguments: object, imports: Iterable[str] = (), **variables: str
) -> Iterator[Script]:
    """Run a script from one of the interpreters, `ended` has what it writes; none stays."""
    asked = _asked(script, arguments)
    with _to_files(asked, imports=imports, variables=variables) as running:
        yield running


@contextlib.contextmanager
def _to_files(asked: list[object], **options: Any) -> Iterator[Script]:
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        outputs = stdout.fileno(), stderr.fileno()
        script = _start(asked, *outputs, stdout, stderr, **options)
        try:
            yield script
        finally:
            _end(script)


def run_to_end(
    script: str | Path, *arguments: object, timeout: float = 80, first: Path | None = None
) -> Ended:
    """Run a script to its end, as a file or as `python -c` runs its source."""
    with _to_files(_asked(script, arguments), first=first) as running:
        return running.ended(timeout)


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
    *,
    first: Path | None = None,
    imports: Iterable[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Script:
    source, *arguments = map(str, asked)
    message = json.dumps([source, dict(variables or {}), *arguments]).encode()
    answers, its_answers = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with its_answers:
        descriptors = [its_out, its_err, its_answers.fileno()]
        socket.send_fds(_server(first, *imports), [message], descriptors)
    return Script(answers, stdout, stderr)
