"""The processes of one verification: hosts that are kept, and one player for each run."""

from __future__ import annotations

import functools
import os
import pickle
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from dataporter.engine.child_processes import check_fork
from dataporter.errors import FactoryError, OptionError, add_note
from dataporter.tools.verify.playing import Hosting, Play, Played, Problem, host, play
from dataporter.tools.verify.processes import (
    Process,
    ProcessEndedError,
    Task,
    TimeUpError,
    forked_here,
    nurseries,
)
from dataporter.tools.verify.remaking import Facts
from dataporter.tools.verify.standing_still import Still

# A set of two strings has one of two orders. Of the PYTHONHASHSEEDs below 200,000 these four were
# searched for, two at a time, to give both orders to as many of 202 pairs of words as possible that
# labels are made of ("male" and "female", "train" and "val"): they do to 199, with the hash of
# Python 3.11 and later. Any four seeds do to 7 of 8 pairs if strings go into the set in one order.
_HASH_SEEDS = ("16126", "16245", "28951", "190666")
_TOP_LEVEL = "make it a function at the top level of a module that can be imported by its name"
_SECONDS_TO_START = 120  # an interpreter that imports torch; they are not counted as the loader's


class Where(NamedTuple):
    """A host: in the one interpreter or the other, what stands still, and which of its kind."""

    interpreter: int = 0
    still: Still | None = None
    again: int = 0


HERE = Where()


class Laboratory:
    """Runs plays of one factory in processes of their own, until a deadline."""

    def __init__(
        self,
        factory: Callable[[], Any] | str,
        *,
        seconds: float,
        shows_output: bool = False,
        interpreters: int = 2,
    ) -> None:
        check_fork("Running a loader in processes of its own")
        if isinstance(factory, str):
            _check_name(factory)
        self._factory = factory
        self._seconds = seconds
        self._shows_output = shows_output
        self._hosts: dict[Where, Process] = {}
        self._pickled = factory if isinstance(factory, str) else _pickled(factory)
        # And what to do about it; empty where another interpreter does find the factory.
        self.why_not_importable = _TOP_LEVEL if self._pickled is None else ""
        self._hash_seeds: tuple[str, ...] = _HASH_SEEDS
        self._other = 0  # which of the hash seeds the other interpreter has, once there is one
        # A user who has set it has it in all runs; that is then no difference between them.
        if os.environ.get("PYTHONHASHSEED", "random") != "random":
            self._hash_seeds = (os.environ["PYTHONHASHSEED"],) * 2
        if self.is_importable:
            for seed in self._hash_seeds[:interpreters]:
                nurseries.start(seed)
        self._importing = {HERE: self._started(HERE)}
        self._deadline = monotonic() + seconds  # now that an interpreter has started

    def close(self) -> None:
        """End all processes but the nurseries."""
        for processes in (self._importing, self._hosts):
            while processes:
                processes.popitem()[1].kill()

    @property
    def is_importable(self) -> bool:
        """Whether another interpreter finds the factory too, as far as that was tried."""
        return self._pickled is not None

    def take_another_interpreter(self) -> None:
        """Have the other interpreter be one that was not yet, as long as there is one."""
        self._other = self._other % (len(self._hash_seeds) - 1) + 1
        for where in [where for where in self._hosts if where.interpreter]:
            self._hosts.pop(where).kill()
        for seed in self._hash_seeds[self._other + 1 :][:1]:
            nurseries.start(seed)  # meanwhile, for the next time

    @property
    def seconds_left(self) -> float:
        return self._deadline - monotonic()

    def play(self, request: Play, where: Where = HERE) -> tuple[Facts, Played]:
        """Run the loader once, in a new process."""
        facts, played = self.run(functools.partial(play, request=request), where)
        return facts, Played(problem=played) if isinstance(played, Problem) else played

    def run(self, task: Task, where: Where = HERE) -> tuple[Any, Any]:
        """Have a new process do a task with the factory: what the loader is like, then what it did.

        A problem in place of the first raises, one in place of the second is the caller's.
        """
        player = self._host(where).fork(task, self._deadline)
        try:
            return self._result(player)
        finally:
            player.kill()

    def _result(self, player: Process) -> tuple[Any, Any]:
        try:
            facts = player.receive(self._deadline)
        except ProcessEndedError:
            msg = "the process ended while the factory ran: it crashed, or called os._exit()."
            raise FactoryError(msg) from None
        except TimeUpError:
            raise FactoryError(self._too_long("the factory has not returned")) from None
        if isinstance(facts, Problem):
            raise _raised(facts, "the factory failed")
        try:
            return facts, player.receive(self._deadline)
        except ProcessEndedError:
            words = "the process ended: it crashed, or was killed for want of memory"
            return facts, Problem("batch", "ProcessEnded", words, "")

    def _host(self, where: Where) -> Process:
        if where not in self._hosts:
            started = self._importing.pop(where, None) or self._started(where)
            self._hosts[where] = started
            try:
                problem = started.receive(self._deadline)
            except ProcessEndedError:
                msg = "the process ended while the factory was imported: it called os._exit()?"
                raise FactoryError(msg) from None
            except TimeUpError:
                raise FactoryError(self._too_long("its import has not ended")) from None
            if problem is not None:
                if isinstance(self._factory, str) or not self.is_importable or where != HERE:
                    raise _raised(problem, "the import failed")
                # Found by this process alone, as pytest's --import-mode=importlib has it.
                self._pickled = None
                self.why_not_importable = f"{problem.words}; {_TOP_LEVEL}"
                self._hosts.pop(where).kill()
                return self._host(where)
        return self._hosts[where]

    def _started(self, where: Where) -> Process:
        if self._pickled is None:
            return forked_here(functools.partial(self._host_forked, where))
        hosting = Hosting(
            factory=self._pickled,
            path=tuple(sys.path),
            folder=str(os.getcwd()),  # noqa: PTH109  a string is what travels
            environment=dict(os.environ),
            still=where.still,
            shows_output=self._shows_output,
        )
        deadline = monotonic() + _SECONDS_TO_START
        try:
            seed = self._hash_seeds[self._other if where.interpreter else 0]
            return nurseries.fork(seed, hosting, deadline)
        except TimeUpError:
            msg = (
                f"a new interpreter has not imported dataporter after {_SECONDS_TO_START} seconds. "
                "The machine is too busy for that, or its disk too slow."
            )
            raise FactoryError(msg) from None

    def _host_forked(self, where: Where, channel: socket.socket, _: Any) -> None:
        factory: Any = self._factory
        host(channel, lambda: factory, where.still, shows_output=self._shows_output)

    def _too_long(self, what: str) -> str:
        return (
            f"{what} after {self._seconds:g} seconds. Find out what it waits for, or give it "
            "more time."
        )


def _check_name(factory: str) -> None:
    module, _, name = factory.partition(":")
    is_file = module.endswith(".py") and Path(module).is_file()
    steps = (*module.split("."), *name.split("."))
    if is_file or not all(step.isidentifier() for step in steps):
        hint = _about_file(Path(module), name) if module.endswith(".py") else ""
        msg = f"the factory is named as package.module:function, found {factory!r}.{hint}"
        raise OptionError(msg)


def _about_file(file: Path, function: str) -> str:
    """Say how a function in a file is named, and what else it takes to be found."""
    if not file.is_file():
        return f" There is no file {file}."
    file = Path(os.path.abspath(file))  # noqa: PTH100  a link is imported by its own name
    module = file.parent if file.name == "__init__.py" else file.with_suffix("")
    root = module.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    steps = module.relative_to(root).parts
    for step in steps:
        if not step.isidentifier():
            better = re.sub(r"\W|^(?=\d)", "_", step)
            return f" Python cannot import {step!r}: rename it, for example to {better!r}."
    named = f"{'.'.join(steps)}:{function or 'function'}"
    if any(os.path.abspath(folder) == str(root) for folder in sys.path):  # noqa: PTH100
        return f" For this file, that is {named}."
    return f" For this file, add {root} to PYTHONPATH and name {named}."


def _pickled(factory: Callable[[], Any]) -> bytes | None:
    """A factory as another interpreter can import it; None where it cannot."""
    if getattr(factory, "__module__", None) == "__main__":
        return None
    try:
        packed = pickle.dumps(factory)
        pickle.loads(packed)  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  whatever its pickling does
        return None
    return None if b"__main__" in packed else packed


def _raised(problem: Problem, what: str) -> FactoryError:
    words = problem.words if problem.kind == "FactoryError" else f"{what}: {problem.words}"
    error = FactoryError(words)
    add_note(error, problem.traceback)
    return error
