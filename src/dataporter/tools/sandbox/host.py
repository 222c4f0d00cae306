"""A host: a process that has imported the user's factory, and forks for each job.

A `Problem` is an error in the user's code, as it travels from a job to whoever asked for it.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np
import torch

from dataporter.errors import DataPorterError, FactoryError, add_note
from dataporter.tools.sandbox.conditions import Conditions, establish
from dataporter.tools.sandbox.factories import Factory, check_factory, import_by_name
from dataporter.tools.sandbox.processes import serve

Facts = TypeVar("Facts")
Result_co = TypeVar("Result_co", covariant=True)


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
