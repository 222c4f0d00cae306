"""One run of the loader beside steps as long as a training's, in a process of its own."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from dataporter.fetch.containers import is_plain_list, parts_of
from dataporter.fetch.timing import Handed, Made, Timing
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.tools.profile.slow_samples import Slow, slow_samples
from dataporter.tools.profile.subject import Subject, made_by
from dataporter.tools.verify.playing import Problem, check_factory, problem_of
from dataporter.tools.verify.processes import send
from dataporter.utils.dataloader import timed_steps

_SHARE_OF_RUN = 0.9  # of the time, where samples are fetched again after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure: the loader with these options, up to so many batches and seconds."""

    options: dict[str, Any] = field(default_factory=dict)
    batches: int
    seconds: float  # from the moment that the loader is made
    finds_slow: bool  # whether samples that seem slow are fetched again afterwards, in that time
    deadline: float  # of all, on the monotonic clock, which the processes of a machine share
    step_seconds: float


class Step(NamedTuple):
    """One batch as its consumer saw it. Stamps are nanoseconds."""

    asked: int
    got: int
    done: int  # when the step was over
    is_first: bool  # of its pass: workers start up in it
    bytes: dict[str, int]  # of its tensors, by dtype


@dataclass(slots=True, kw_only=True)
class Measured:
    """All that was noted."""

    subject: Subject
    step_seconds: float
    steps: list[Step] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    slow: tuple[Slow, ...] = ()
    problem: Problem | None = None


def measure(channel: socket.socket, factory: Callable[[], Any], request: Request) -> None:
    """Be a process that measures: say what the loader is like, then what was noted.

    Where the module of the factory has computed in parallel when it was imported, torch has one
    thread here, since a fork cannot use OpenMP's.
    """
    try:
        check_factory(factory)
        loader, subject = made_by(factory, request.options)
    except BaseException as error:  # noqa: BLE001  a factory can raise anything
        send(channel, problem_of("factory", error))
        return
    send(channel, subject)
    send(channel, measured(loader, subject, request))


def measured(loader: DataLoader[Any], subject: Subject, request: Request) -> Measured:
    """Go through a loader, pass after pass, until there are enough batches or time is up."""
    found = Measured(subject=subject, step_seconds=request.step_seconds)
    timing = Timing()
    if isinstance(loader, ResumableDataLoader):
        loader.note_times(timing)
    deadline = min(monotonic() + request.seconds, request.deadline)
    share = _SHARE_OF_RUN if request.finds_slow else 1.0
    run_until = monotonic() + (deadline - monotonic()) * share
    try:
        is_over = False
        while not is_over:
            before = len(found.steps)
            is_over = _pass(loader, found, request, run_until) or len(found.steps) == before
    except BaseException as error:  # noqa: BLE001  a dataset can raise anything
        found.problem = problem_of("batch", error)
    found.made, found.handed = timing.made, timing.handed
    if request.finds_slow and found.problem is None:
        found.slow = slow_samples(loader.dataset, found.made, deadline)
    return found


def _pass(loader: DataLoader[Any], found: Measured, request: Request, deadline: float) -> bool:
    """Go through one pass; whether that was the last."""
    left = request.batches - len(found.steps)
    stepped = timed_steps(loader, left, request.step_seconds, _bytes_by_dtype)
    is_first = True
    previous: tuple[int, int, Any] | None = None
    for current in stepped:
        if previous is not None:
            _note(found, previous, done=current[0], is_first=is_first)
            is_first = False
        previous = current
        if monotonic() > deadline:
            break
    if previous is not None:  # its step was cut off, or nothing is asked for after it
        done = previous[1] + int(request.step_seconds * 1e9)
        _note(found, previous, done=done, is_first=is_first)
    return len(found.steps) >= request.batches or monotonic() > deadline


def _note(found: Measured, step: tuple[int, int, Any], *, done: int, is_first: bool) -> None:
    asked, got, seen = step
    found.steps.append(Step(asked, got, done, is_first, seen))


def _bytes_by_dtype(batch: Any) -> dict[str, int]:
    counted: Counter[str] = Counter()
    seen: set[int] = set()  # what is there twice is counted once
    parts = [batch]
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            counted[str(part.dtype).removeprefix("torch.")] += part.nbytes
        elif hasattr(part, "dtype") and hasattr(part, "nbytes"):
            counted[str(part.dtype)] += part.nbytes
        elif not is_plain_list(part):
            parts += [inner for _, _, inner in parts_of(part) or ()]
    return dict(counted)
