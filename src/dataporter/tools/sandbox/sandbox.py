"""The processes of one experiment on a user's factory, all within one deadline.

A host is a process that has imported the user's factory, and forks for each job. A `Problem` is an
error in the user's code, as it travels from a job to whoever asked for it.
"""

from __future__ import annotations

import functools
import os
import pickle
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np
import torch

from dataporter.errors import DataPorterError, FactoryError, add_note
from dataporter.tools.sandbox.conditions import USUAL, Conditions, establish
from dataporter.tools.sandbox.factories import (
    Factory,
    check_factory,
    check_name,
    import_by_name,
    pickled,
)
from dataporter.tools.sandbox.processes import (
    Process,
    ProcessEndedError,
    TimeUpError,
    check_fork,
    fork_here,
    fresh_interpreters,
    serve,
)

Facts = TypeVar("Facts")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

# A set of two strings has one of two orders. Of the PYTHONHASHSEEDs below 200,000 these four were
# searched for, two at a time, to give both orders to as many of 202 pairs of words as possible that
# labels are made of ("male" and "female", "train" and "val"): they do to 199, with the hash of
# Python 3.11 and later. Any four seeds do to 7 of 8 pairs if strings go into the set in one order.
HASH_SEEDS = ("16126", "16245", "28951", "190666")
_TOP_LEVEL = "make it a function at the top level of a module that can be imported by its name"
_SECONDS_TO_START = 120  # for an interpreter to import torch; not counted as the loader's time


class Problem(NamedTuple):
    """A description of an error that was raised in another process."""

    message: str
    traceback: str = ""
    is_complete: bool = False  # whether the message says by itself what failed
    mismatched: tuple[str, ...] = ()  # fields of a state that do not fit the loader

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """Describe an error."""
        is_ours = isinstance(error, DataPorterError)
        return cls(
            message=str(error) if is_ours else f"{type(error).__name__}: {error}",
            traceback="".join(traceback.format_exception(error)),
            is_complete=isinstance(error, FactoryError),
            mismatched=tuple(each.field for each in getattr(error, "mismatches", ())),
        )

    def fail(self, what: str) -> NoReturn:
        """Raise an error that says what failed, with the user's traceback as a note."""
        error = FactoryError(self.message if self.is_complete else f"{what}: {self.message}")
        add_note(error, self.traceback)
        raise error


class Job(Protocol[Facts, Result_co]):
    """The two steps of a run with a factory, told apart when one fails."""

    def make(self, factory: Factory) -> tuple[Any, Facts]:
        """Make the loader, and describe it."""

    def use(self, loader: Any, facts: Facts) -> Result_co:
        """Do something with the loader. If the user's code fails, a `Problem` is the result."""


def do_job(channel: Connection, factory: Factory, job: Job[Any, Any]) -> None:
    """Send a description of the loader, then the result; a `Problem` in place of what failed."""
    try:
        check_factory(factory)
        loader, facts = job.make(factory)
        channel.send(facts)
        result = job.use(loader, facts)
    except BaseException as error:  # noqa: BLE001  a factory or a dataset can raise anything
        result = Problem.of(error)
    channel.send(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHost:
    """The task of becoming a host, for a fork of a fresh interpreter."""

    job: type[Job[Any, Any]]  # imported with this task, so that no fork has to
    factory: bytes | str  # pickled, or module:name
    path: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    conditions: Conditions
    shows_output: bool

    def __call__(self, channel: Connection, _: Any) -> None:
        """Take over the caller's folder, path and environment, then be a host."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path
        # As in any new interpreter, and not as in other forks of the same one.
        random.seed()
        np.random.seed()  # noqa: NPY002  the legacy generator is meant
        torch.default_generator.seed()
        be_host(
            channel, self._load, self.conditions, shows_output=self.shows_output, imports_it=True
        )

    def _load(self) -> Factory:
        if isinstance(self.factory, bytes):
            return pickle.loads(self.factory)  # type: ignore[no-any-return]  # noqa: S301  ours
        return import_by_name(self.factory)  # type: ignore[no-any-return]  # checked at each job


def be_host(
    channel: Connection,
    load: Callable[[], Factory],
    conditions: Conditions,
    *,
    shows_output: bool,
    imports_it: bool = False,
) -> None:
    """Load the factory, report a problem or None, then fork on request.

    If this process imports the factory's module, forks continue its random numbers, since the
    module may have seeded them.
    """
    _redirect_output(shows=shows_output)
    warnings.simplefilter("ignore")
    establish(conditions)
    try:
        factory = load()
    except BaseException as error:  # noqa: BLE001  an import can raise anything, SystemExit too
        channel.send(Problem.of(error))
        return
    channel.send(None)
    serve(channel, factory, keeps_random=imports_it or conditions.entropy == "fixed")


def _redirect_output(*, shows: bool) -> None:
    """Keep the user's prints out of the report."""
    sink = os.dup(2) if shows else os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)


class Sandbox:
    """Runs jobs of one kind with one factory in processes of their own, until a deadline.

    `why_not_importable` is empty if other interpreters find the factory too. Else the factory runs
    in forks of this process, so that there is one interpreter only.
    """

    def __init__(
        self,
        factory: Factory | str,
        job: type[Job[Any, Any]],
        *,
        seconds: float,
        shows_output: bool = False,
        interpreters: int = 1,
    ) -> None:
        check_fork("Running a loader in processes of its own")
        if isinstance(factory, str):
            check_name(factory)
        self._factory = factory
        self._job = job  # its module is imported once for all forks
        self._seconds = seconds
        self._shows_output = shows_output
        self._hosts: dict[Conditions, Process] = {}
        self._pickled = factory if isinstance(factory, str) else pickled(factory)
        self.why_not_importable = _TOP_LEVEL if self._pickled is None else ""
        for number in range(interpreters):
            self.prepare(number)
        self._importing = {USUAL: self._start(USUAL)}
        self._deadline = monotonic() + seconds  # now that an interpreter has started

    def close(self) -> None:
        """End all processes except fresh interpreters."""
        for processes in (self._importing, self._hosts):
            while processes:
                processes.popitem()[1].kill()

    @property
    def seconds_left(self) -> float:
        return self._deadline - monotonic()

    def prepare(self, interpreter: int) -> None:
        """Begin to start an interpreter that is needed soon."""
        if not self.why_not_importable and interpreter < len(HASH_SEEDS):
            fresh_interpreters.start(_hash_seed(interpreter), self._job.__module__)

    def run(
        self, job: Job[Facts, Result], conditions: Conditions = USUAL
    ) -> tuple[Facts, Result | Problem]:
        """Do a job in a new process: return a description of the loader, and the result.

        Raise `FactoryError` if the loader cannot be made.
        """
        process = self._host(conditions).fork(functools.partial(do_job, job=job), self._deadline)
        try:
            return self._result(process)
        finally:
            process.kill()

    def result(self, job: Job[Any, Result], failed: str, time_up: str) -> Result:
        """Do a job, and return its result; raise `FactoryError` if it fails or takes too long."""
        try:
            _, found = self.run(job)
        except TimeUpError:
            raise FactoryError(time_up) from None
        if isinstance(found, Problem):
            found.fail(failed)
        return found

    def _result(self, process: Process) -> tuple[Any, Any]:
        try:
            facts = process.receive(self._deadline)
        except ProcessEndedError:
            msg = "the process ended while the factory ran: it crashed, or called os._exit()."
            raise FactoryError(msg) from None
        except TimeUpError:
            raise FactoryError(self._too_long("the factory has not returned")) from None
        if isinstance(facts, Problem):
            facts.fail("the factory failed")
        try:
            return facts, process.receive(self._deadline)
        except ProcessEndedError:
            message = "the process ended: it crashed, or was killed for lack of memory"
            return facts, Problem(message)

    def _host(self, conditions: Conditions) -> Process:
        if self.why_not_importable:
            conditions = replace(conditions, interpreter=0)
        if conditions in self._hosts:
            return self._hosts[conditions]
        host = self._importing.pop(conditions, None) or self._start(conditions)
        self._hosts[conditions] = host
        try:
            problem = host.receive(self._deadline)
        except ProcessEndedError:
            msg = "the process ended while the factory was imported: it called os._exit()?"
            raise FactoryError(msg) from None
        except TimeUpError:
            raise FactoryError(self._too_long("its import has not ended")) from None
        if problem is None:
            return host
        if isinstance(self._factory, str) or self.why_not_importable or conditions != USUAL:
            problem.fail("the import failed")
        # Only this process finds the module, as with pytest's --import-mode=importlib.
        self._pickled = None
        self.why_not_importable = f"{problem.message}; {_TOP_LEVEL}"
        self._hosts.pop(conditions).kill()
        return self._host(conditions)

    def _start(self, conditions: Conditions) -> Process:
        if self._pickled is None:
            return fork_here(functools.partial(self._be_host_here, conditions))
        host = NewHost(
            job=self._job,
            factory=self._pickled,
            path=tuple(sys.path),
            folder=str(os.getcwd()),  # noqa: PTH109  a string is sent
            environment=dict(os.environ),
            conditions=conditions,
            shows_output=self._shows_output,
        )
        try:
            seed, deadline = _hash_seed(conditions.interpreter), monotonic() + _SECONDS_TO_START
            return fresh_interpreters.fork(seed, self._job.__module__, host, deadline)
        except TimeUpError:
            msg = (
                f"a new interpreter has not imported dataporter after {_SECONDS_TO_START} seconds. "
                "The machine is too busy, or its disk too slow."
            )
            raise FactoryError(msg) from None

    def _be_host_here(self, conditions: Conditions, channel: Connection, _: Any) -> None:
        factory: Any = self._factory
        be_host(channel, lambda: factory, conditions, shows_output=self._shows_output)

    def _too_long(self, what: str) -> str:
        return (
            f"{what} after {self._seconds:g} seconds. Find out what it waits for, or give it "
            "more time."
        )


def _hash_seed(interpreter: int) -> str:
    """Return the PYTHONHASHSEED of an interpreter: the user's own for all, if there is one."""
    own = os.environ.get("PYTHONHASHSEED", "random")
    return HASH_SEEDS[interpreter % len(HASH_SEEDS)] if own == "random" else own
