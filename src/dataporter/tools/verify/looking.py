"""What fetching a sample changes: generators that moved, counters, caches, data itself.

A look walks over everything that the dataset and the functions beside it can reach, in their
attributes, closures and the variables of their modules, and remembers a digest of each. What
has changed can be put back, to see whether it mattered.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from dataporter.tools.verify.contents import digest
from dataporter.tools.verify.standing_still import is_users

_DEEPEST = 6
_MOST_ITEMS = 1000  # of one container
_MOST_BYTES = 2**28  # of data that is looked at, all together

Kind: TypeAlias = Literal["generator", "size", "number", "data"]


class Seen(NamedTuple):
    """Something at a path, at one moment."""

    kind: Kind
    digest: bytes
    words: str


class Change(NamedTuple):
    """Something that was not the same before and after."""

    path: str
    kind: Kind
    words: str


def look(roots: Mapping[str, Any]) -> dict[str, Seen]:
    """Look at everything that can be reached from some objects.

    >>> class Counting:
    ...     calls = 0
    >>> dataset = Counting()
    >>> dataset.calls = 1
    >>> before = look({"dataset": dataset})
    >>> dataset.calls = 2
    >>> changes(before, look({"dataset": dataset}))
    [Change(path='dataset.calls', kind='number', words='int 1 became 2')]
    """
    return _walked(roots).seen


def keeping(roots: Mapping[str, Any], path: str) -> Callable[[], None]:
    """Keep a copy of what is at a path, and return what puts that back.

    >>> dataset = {"cache": [1]}
    >>> put_back = keeping({"dataset": dataset}, "dataset['cache']")
    >>> dataset["cache"].append(2)
    >>> put_back()
    >>> dataset
    {'cache': [1]}
    """
    found = _walked(roots).places.get(path)
    if found is None:
        return lambda: None
    owner, step, value = found
    state = _state_of(value)
    kept = copy.deepcopy(value) if state is None else state
    return functools.partial(_put_back, owner, step, value, kept)


def _walked(roots: Mapping[str, Any]) -> _Walk:
    walk = _Walk()
    for name, root in roots.items():
        walk.visit(name, root, _DEEPEST)
    for module in sorted(walk.modules):
        for name, value in _variables(sys.modules[module]):
            path = f"{module}.{name}"
            walk.places[path] = sys.modules[module], f".{name}", value
            walk.visit(path, value, _DEEPEST - 1)
    return walk


def _put_back(owner: Any, step: str, value: Any, kept: Any) -> None:
    """Make a value what it was: where it is, if that can be, else by its owner."""
    if isinstance(value, random.Random):
        value.setstate(kept)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = kept
    elif isinstance(value, np.random.RandomState | torch.Generator):
        value.set_state(kept)
    elif isinstance(value, torch.Tensor | np.ndarray):
        value[...] = kept
    elif isinstance(value, MutableSequence):
        value[:] = kept
    elif isinstance(value, MutableMapping | MutableSet):
        value.clear()
        value |= kept
    elif step.startswith("."):
        setattr(owner, step[1:], kept)
    else:
        keys = owner if isinstance(owner, Mapping) else range(len(owner))
        owner[next(key for key in keys if f"[{key!r:.40}]" == step)] = kept


def changes(before: Mapping[str, Seen], after: Mapping[str, Seen]) -> list[Change]:
    """Tell what has changed, the likeliest culprit first."""
    found = []
    for path, was in before.items():
        now = after.get(path)
        if now is None or now.digest == was.digest:
            continue
        words = was.words
        if was.kind in ("size", "number"):
            words += f" became {now.words.partition(' ')[2]}"
        found.append(Change(path, was.kind, words))
    order: list[Kind] = ["generator", "size", "number", "data"]
    return sorted(found, key=lambda change: order.index(change.kind))


class _Walk:
    """One walk, which visits each object once."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}
        self.modules: set[str] = set()
        self.places: dict[str, tuple[Any, str, Any]] = {}  # by path: owner, step from it, value
        self._visited: dict[int, Any] = {}  # kept alive, so that no id is used twice
        self._bytes = 0

    def visit(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, bool | int | float | str | bytes | None):
            words = f"{type(value).__name__} {value!r:.20}"
            self.seen[path] = Seen("number", digest(value), words)
            return
        if id(value) in self._visited or depth == 0:
            return
        self._visited[id(value)] = value
        state = _state_of(value)
        if state is not None:
            self.seen[path] = Seen("generator", digest(state), _name_of(type(value)))
        elif isinstance(value, torch.Tensor | np.ndarray):
            self._bytes += value.nbytes
            if self._bytes <= _MOST_BYTES:
                self.seen[path] = Seen("data", digest(value), _name_of(type(value)))
        else:
            self._note_module(value)
            if isinstance(value, MutableMapping | MutableSequence | MutableSet):
                words = f"size {len(value)}"
                self.seen[path] = Seen("size", digest(len(value)), words)
            for step, part in _parts(value):
                self.places[path + step] = value, step, part
                self.visit(path + step, part, depth - 1)

    def _note_module(self, value: Any) -> None:
        owner = value if isinstance(value, FunctionType) else type(value)
        module = owner.__module__
        if module in sys.modules and is_users(module):
            self.modules.add(module)


def _state_of(value: Any) -> Any:
    """The state of a random generator; None of anything else."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    return value.get_state() if isinstance(value, torch.Generator) else None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object of the user's leads to."""
    if isinstance(value, Mapping):
        for key in list(value)[:_MOST_ITEMS]:
            yield f"[{key!r:.40}]", value[key]
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value[:_MOST_ITEMS]):
            yield f"[{number}]", part
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif isinstance(value, MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, FunctionType):
        yield from _kept_by(value)
    elif not isinstance(value, type | ModuleType):
        own = {**getattr(value, "__dict__", {}), **_in_slots(value)}
        yield from ((f".{name}", part) for name, part in own.items())
        if is_users(type(value).__module__):  # what its own attributes do not hide
            shared = _variables(type(value))
            yield from ((f".{name}", part) for name, part in shared if name not in own)


def _in_slots(value: Any) -> dict[str, Any]:
    """The attributes of an object of the user's that are not in its `__dict__`."""
    found = {}
    for kind in type(value).__mro__:
        if is_users(kind.__module__):
            slots = [
                name for name, part in vars(kind).items() if type(part) is MemberDescriptorType
            ]
            found.update({name: getattr(value, name) for name in slots if hasattr(value, name)})
    return found


def _kept_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # nothing was assigned to it yet
            yield f".{name}", cell.cell_contents
    yield ".defaults", function.__defaults__
    yield from ((f".{name}", part) for name, part in vars(function).items())


def _variables(owner: Any) -> Iterator[tuple[str, Any]]:
    """What a module or class keeps for all: neither its functions nor its constants' types."""
    for name, value in list(vars(owner).items()):
        if not name.startswith("__") and not callable(value) and not isinstance(value, ModuleType):
            yield name, value


def _name_of(kind: type) -> str:
    owner = {"numpy": "NumPy's ", "torch": "torch's ", "random": "Python's "}
    return owner.get(kind.__module__.partition(".")[0], "") + kind.__qualname__
