"""Contenders in processes of their own, stopped except in their turns.

A loader fetches ahead, which would cost the next contender its cores. So a player is a process
group: its workers stop and go on with it. Players are forks of the process that has made the
dataset, so all of them read the same memory.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from machine import group_memory_mb

from dataporter.system.processes import die_with

_PATIENCE = 5.0  # seconds for a player to end by itself
_LONGEST = 120.0  # seconds for a call
_SAMPLED = 0.05  # seconds between two looks at its memory
_fork = multiprocessing.get_context("fork")


class PlayerFailedError(Exception):
    """A contender raised an error, or its process died."""


class Player:
    """An object in a process of its own, whose methods are called from here."""

    def __init__(self, make: Callable[[], Any], *, stops: bool = True) -> None:
        """Fork a process that makes the object; with `stops`, a group that stops between calls."""
        self._pipe, theirs = _fork.Pipe()
        self._stops = stops
        self.failure = ""
        self._process = _fork.Process(target=_serve, args=(make, theirs, os.getpid(), stops))
        self._process.start()
        theirs.close()
        if stops:
            with suppress(OSError):  # it has done so itself
                os.setpgid(self.pid, self.pid)

    @property
    def pid(self) -> int:
        """Its process, and its group."""
        return self._process.pid or 0

    def begin(self, method: str, *arguments: Any) -> None:
        """Let the player go on, and call a method."""
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # it has died, as `end` will notice
            self._pipe.send((method, arguments))

    def end(self) -> Any:
        """Wait for the method's result, and stop the player."""
        value = None
        try:
            if self._pipe.poll(_LONGEST):
                self.failure, value = self._pipe.recv()
            else:
                self.failure = f"no answer in {_LONGEST:.0f} seconds"
        except (EOFError, OSError):
            self._process.join(_PATIENCE)
            self.failure = f"its process ended with status {self._process.exitcode}"
        self._signal(signal.SIGSTOP)
        if self.failure:
            raise PlayerFailedError(self.failure)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method, and wait for its result."""
        self.begin(method, *arguments)
        return self.end()

    def peak_mb(self, method: str, *arguments: Any) -> float | None:
        """Call a method, and look at the memory of all processes meanwhile."""
        self.begin(method, *arguments)
        peak = group_memory_mb(self.pid)
        until = time.monotonic() + _LONGEST
        while not self._pipe.poll(_SAMPLED) and time.monotonic() < until:
            now = group_memory_mb(self.pid)
            peak = max(peak or 0.0, now) if now is not None else peak
        self.end()
        return peak

    def close(self) -> None:
        """End the player and its workers."""
        self._signal(signal.SIGCONT)
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(_PATIENCE)
        self._signal(signal.SIGKILL)
        if not self._stops:
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def _signal(self, number: int) -> None:
        if self._stops:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def close_all(players: Iterable[Player]) -> None:
    """End players."""
    for player in players:
        player.close()


def _serve(make: Callable[[], Any], pipe: Any, parent: int, leads: bool) -> None:
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if leads:
        os.setpgid(0, 0)
    torch.set_num_threads(1)  # as in a worker
    gc.freeze()  # what was imported need not be looked through at every collection
    player = None
    with suppress(EOFError, OSError):
        while (asked := pipe.recv()) is not None:
            method, arguments = asked
            try:
                player = make() if player is None else player
                answer = ("", getattr(player, method)(*arguments))
            except Exception as error:  # noqa: BLE001  others can go on
                answer = (f"{type(error).__name__}: {error}", None)
            pipe.send(answer)
    if player is not None and hasattr(player, "close"):
        with suppress(Exception):
            player.close()


def die_with_player(_worker: int) -> None:
    """Make a worker of torch's end with its loader, even if it is stopped."""
    die_with(os.getppid())
