"""One run of the user's loader, in a process of its own: what it delivered, and its states."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from dataporter.arguments import did_you_mean
from dataporter.errors import DataPorterError, FactoryError
from dataporter.fetch.worker_info import WorkerInfo, announced
from dataporter.law import Plan, Tail, Topology
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.tools.verify.contents import Contents, contents_of
from dataporter.tools.verify.looking import Change, changes, keeping, look
from dataporter.tools.verify.processes import send, serve
from dataporter.tools.verify.remaking import Facts, made_by
from dataporter.tools.verify.standing_still import Still, stand_still

Factory: TypeAlias = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What a player is to do: make the loader, load a state, deliver batches."""

    options: dict[str, Any] = field(default_factory=dict)
    state: bytes | None = None
    batches: int = 1
    seconds: float = 60.0
    passes: int = 1000  # more than that are not begun
    as_samples: bool = False  # not batches, but what they would have been made of
    twice: bool = False  # load the same state again, and deliver the same batches again
    looks: bool = False  # at what changes meanwhile
    puts_back: str | None = None  # the path of what is put back before the second time
    kills: tuple[int, ...] = ()  # a worker is killed after so many batches
    worker: tuple[int, int] | None = None  # the dataset is told to be in this worker of so many


class Delivered(NamedTuple):
    """One batch."""

    epoch: int
    number: int  # in its epoch, from 1
    positions: tuple[int, ...] | None  # where the order is our own
    indices: tuple[int, ...] | None
    contents: tuple[Contents, ...]  # of the batch, or of each of its samples


class Problem(NamedTuple):
    """An error in the user's code, or about it."""

    stage: str  # "factory", "load" or "batch"
    kind: str  # the error's type
    words: str
    traceback: str


@dataclass(slots=True, kw_only=True)
class Played:
    """What a player has done."""

    delivered: list[Delivered] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)  # before each of them, and after the last
    first: int = 0  # of two times: how many were delivered the first time
    out_of_time: bool = False
    killed: int = 0
    changed: list[Change] = field(default_factory=list)
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """Where a host finds the factory, and what it makes of its process before."""

    factory: bytes | str  # pickled, or module:name
    path: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    still: Still | None = None
    shows_output: bool = False

    def __call__(self, channel: socket.socket, _: Any) -> None:
        """Be a host: import the factory, say how that went, then fork players."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path
        # As in any new interpreter, and not as in the other hosts of a nursery.
        random.seed()
        np.random.seed()  # noqa: NPY002  the legacy generator is what is meant
        torch.default_generator.seed()
        host(
            channel, self._load, self.still, shows_output=self.shows_output, has_just_imported=True
        )

    def _load(self) -> Factory:
        if isinstance(self.factory, bytes):
            return pickle.loads(self.factory)  # type: ignore[no-any-return]  # noqa: S301  ours
        return _imported(self.factory)


def host(
    channel: socket.socket,
    load: Callable[[], Factory],
    still: Still | None,
    *,
    shows_output: bool,
    has_just_imported: bool = False,
) -> None:
    """Get the factory, say how that went, then fork players.

    Where its module was imported here, players draw on from there, as it may have seeded.
    """
    _redirect_output(shows=shows_output)
    warnings.simplefilter("ignore")
    if still is not None:
        stand_still(still)
    try:
        factory = load()
    except BaseException as error:  # noqa: BLE001  an import can raise anything, SystemExit too
        send(channel, problem_of("factory", error))
        return
    send(channel, None)
    serve(channel, factory, keeps_random=has_just_imported or still == "entropy")


def _redirect_output(*, shows: bool) -> None:
    """Keep what the user's code prints out of the report."""
    sink = os.dup(2) if shows else os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)


def _imported(name: str) -> Factory:
    """Import what `package.module:name` stands for."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise
        msg = (
            f"there is no module {missing!r} in the folders where Python looks for packages. Check "
            "the name. If it is right, add the module's folder to PYTHONPATH, or install it."
        )
        raise FactoryError(msg) from error
    before = ""
    for step in attribute.split("."):
        if not hasattr(found, step):
            names = [each for each in dir(found) if not each.startswith("_")]
            functions = [each for each in names if callable(getattr(found, each, None))]
            hint = did_you_mean(before + step, [before + each for each in functions])
            msg = f"{module_name} has no {attribute!r}.{hint} Name a function that makes a loader."
            raise FactoryError(msg)
        found = getattr(found, step)
        before += f"{step}."
    return found  # type: ignore[no-any-return]  # checked where it is called


def play(channel: socket.socket, factory: Factory, request: Play) -> None:
    """Be a player: say what the loader is like once it is made, then what it delivered."""
    try:
        check_factory(factory)
        options = {"in_order": True, **request.options}
        if request.as_samples:
            options |= _AS_SAMPLES
        loader, facts = made_by(factory, options)
    except BaseException as error:  # noqa: BLE001  a factory can raise anything
        send(channel, problem_of("factory", error))
        return
    send(channel, facts)
    played = Played()
    _Player(loader, facts, request, played).play()
    send(channel, played)


def check_factory(factory: Any) -> None:
    """Raise unless this can be called without arguments."""
    if not callable(factory):
        msg = (
            f"the factory cannot be called, it is of type {type(factory).__name__}. Name a "
            "function that takes no arguments and returns the loader."
        )
        raise FactoryError(msg)
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some builtins do not say what they take
        return
    try:
        signature.bind()
    except TypeError as error:
        msg = (
            f"the factory is called without arguments, and that does not do ({error}). Give its "
            "arguments defaults, or name a function around it."
        )
        raise FactoryError(msg) from error


class _Player:
    def __init__(
        self, loader: ResumableDataLoader[Any], facts: Facts, request: Play, played: Played
    ) -> None:
        self._loader = loader
        self._facts = facts
        self._request = request
        self._played = played
        self._deadline = monotonic() + request.seconds
        self._others = {child.pid for child in multiprocessing.active_children()}

    def play(self) -> None:
        stage = "load"
        try:
            if self._request.state is not None:
                self._loader.load_state_dict(pickle.loads(self._request.state))  # noqa: S301  ours
            stage = "batch"
            roots = self._roots()
            before = look(roots) if self._request.looks else {}
            try:
                self._deliver_once_or_twice(roots)
            finally:
                if self._request.looks:
                    self._played.changed = changes(before, look(roots))
        except BaseException as error:  # noqa: BLE001  a dataset can raise anything
            self._played.problem = problem_of(stage, error)

    def _deliver_once_or_twice(self, roots: dict[str, Any]) -> None:
        path = self._request.puts_back
        put_back = None if path is None else keeping(roots, path)
        start = self._loader.state_dict()
        self._deliver(self._request.batches)
        self._played.first = len(self._played.delivered)
        if self._request.twice:
            if put_back is not None:
                put_back()
            self._loader.load_state_dict(start)
            self._deliver(2 * self._played.first)

    def _roots(self) -> dict[str, Any]:
        """Where to look for what delivering batches changes."""
        roots: dict[str, Any] = {self._facts.dataset: self._loader.dataset}
        if self._loader.collate_fn is not None:
            roots["collate_fn"] = self._loader.collate_fn
        if self._facts.has_sampler:
            is_batched = self._loader.batch_size is None and self._loader.batch_sampler is not None
            roots["sampler"] = self._loader.batch_sampler if is_batched else self._loader.sampler
        return roots

    def _deliver(self, most: int) -> None:
        self._note_state()
        delivered, empty = self._played.delivered, 0
        for _ in range(self._request.passes):
            count = len(delivered)
            self._deliver_pass(most)
            empty = empty + 1 if len(delivered) == count else 0
            # What remains of an epoch may be empty; two such are the end.
            if self._played.out_of_time or len(delivered) >= most or empty == 2:  # noqa: PLR2004
                return

    def _deliver_pass(self, most: int) -> None:
        with self._told():
            batches = iter(self._loader)
            positions = self._positions()
            self._kill_if_due()
            for batch in batches:
                self._note(batch, next(positions, None))
                self._kill_if_due()
                if monotonic() > self._deadline:
                    self._played.out_of_time = True
                if self._played.out_of_time or len(self._played.delivered) >= most:
                    break

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Have the dataset believe that it is in a worker, if asked to."""
        if self._request.worker is None:
            yield
            return
        worker, count = self._request.worker
        dataset = self._loader.dataset
        with announced(WorkerInfo(id=worker, num_workers=count, seed=0, dataset=dataset)):
            if self._loader.worker_init_fn is not None:
                self._loader.worker_init_fn(worker)
            yield

    def _positions(self) -> Iterator[tuple[int, ...] | None]:
        """The positions of each batch of the pass that has just begun."""
        sampler: Any = self._loader.sampler
        if not self._facts.follows_own_order:
            return iter(())
        tail: Tail = "drop" if self._loader.drop_last else sampler.tail
        topology: Topology = sampler.topology
        size = self._loader.batch_size or 1
        plan = Plan(length=sampler.order.length, batch_size=size, topology=topology, tail=tail)
        return (tuple(map(int, batch)) for batch in plan.batches(self._loader.samples_processed))

    def _note(self, batch: Any, positions: tuple[int, ...] | None) -> None:
        loader, indices = self._loader, None
        if positions is not None:
            order: Any = loader.sampler
            indices = tuple(order.order.indices(loader.epoch, np.array(positions)).tolist())
        held = (
            tuple(pickle.loads(batch))  # noqa: S301  made by `_samples`
            if self._request.as_samples
            else (contents_of(batch, None if positions is None else len(positions)),)
        )
        self._played.delivered.append(
            Delivered(loader.epoch, loader.batches_processed, positions, indices, held)
        )
        self._note_state()

    def _note_state(self) -> None:
        if not self._request.twice:
            self._played.states.append(pickle.dumps(self._loader.state_dict()))

    def _kill_if_due(self) -> None:
        if len(self._played.delivered) not in self._request.kills[self._played.killed :]:
            return
        for child in multiprocessing.active_children():
            if child.name.startswith("dataporter worker") and child.pid not in self._others:
                os.kill(child.pid or 0, signal.SIGKILL)
                self._played.killed += 1
                return


def _samples(samples: list[Any]) -> bytes:
    """Collate samples into what each of them holds."""
    return pickle.dumps([contents_of(sample) for sample in samples])


_AS_SAMPLES = {
    "collate_fn": _samples,
    "converter": None,
    "device": None,
    "device_converter": None,
    "pin_memory": False,
}


def problem_of(stage: str, error: BaseException) -> Problem:
    """Tell of an error to another process."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, DataPorterError):
        return Problem(stage, type(error).__name__, str(error), text)
    return Problem(stage, type(error).__name__, f"{type(error).__name__}: {error}", text)
