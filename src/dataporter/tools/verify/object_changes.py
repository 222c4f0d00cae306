"""Objects that change while batches are delivered: generators, counters, caches, data.

A look visits all that the dataset and the functions beside it can reach through attributes,
closures and variables of their modules, and remembers a digest of each object. An object that
has changed can be put back, to see whether the change mattered.
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

from dataporter.tools.sandbox.conditions import is_users_module
from dataporter.tools.verify.batch_contents import digest

_DEEPEST = 6
_MOST_ITEMS = 1000  # of one container
_MOST_BYTES = 2**28  # of arrays and tensors, all together

Kind: TypeAlias = Literal["generator", "lru_cache", "size", "number", "data"]

_LruCache = type(functools.lru_cache(len))


class Seen(NamedTuple):
    """An object at one moment."""

    kind: Kind
    digest: bytes
    description: str


class Change(NamedTuple):
    """An object that differs between two looks."""

    path: str
    kind: Kind
    description: str


def look(roots: Mapping[str, Any]) -> dict[str, Seen]:
    """Look at everything that can be reached from `roots`, by path.

    >>> class Counting:
    ...     calls = 0
    >>> dataset = Counting()
    >>> dataset.calls = 1
    >>> before = look({"dataset": dataset})
    >>> dataset.calls = 2
    >>> changes(before, look({"dataset": dataset}))
    [Change(path='dataset.calls', kind='number', description='int 1 became 2')]
    """
    return _walked(roots).seen


def keep(roots: Mapping[str, Any], path: str) -> Callable[[], None]:
    """Copy the object at a path, and return a function that puts the copy back.

    >>> dataset = {"cache": [1]}
    >>> restore = keep({"dataset": dataset}, "dataset['cache']")
    >>> dataset["cache"].append(2)
    >>> restore()
    >>> dataset
    {'cache': [1]}
    """
    found = _walked(roots).places.get(path)
    if found is None:
        return lambda: None
    owner, step, value = found
    state = _state_of(value)
    kept = copy.deepcopy(value) if state is None else state
    return functools.partial(_restore, owner, step, value, kept)


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


def _restore(owner: Any, step: str, value: Any, kept: Any) -> None:
    """Restore a value in place if it can be changed, else replace it in its owner."""
    if isinstance(value, _LruCache):
        value.cache_clear()  # it cannot be copied
    elif isinstance(value, random.Random):
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
    """List the objects that differ between two looks, the likeliest culprit first."""
    found = []
    for path, was in before.items():
        now = after.get(path)
        if now is None or now.digest == was.digest:
            continue
        # A generator may be made when it is first needed.
        kind = now.kind if now.kind == "generator" else was.kind
        description = now.description if kind == "generator" else was.description
        if kind in ("lru_cache", "size", "number"):
            description += f" became {now.description.partition(' ')[2]}"
        found.append(Change(path, kind, description))
    order: list[Kind] = ["generator", "lru_cache", "size", "number", "data"]
    return sorted(found, key=lambda change: order.index(change.kind))


class _Walk:
    """One walk, which visits each object once."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}
        self.modules: set[str] = set()
        self.places: dict[str, tuple[Any, str, Any]] = {}  # by path: owner, step from it, value
        self._visited: dict[int, Any] = {}  # kept alive, so that no id is reused
        self._bytes = 0

    def visit(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, bool | int | float | str | bytes | None):
            description = f"{type(value).__name__} {value!r:.20}"
            self.seen[path] = Seen("number", digest(value), description)
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
            if isinstance(value, _LruCache):
                held = value.cache_info()
                held_now = digest((held.currsize, held.misses))
                self.seen[path] = Seen("lru_cache", held_now, f"size {held.currsize}")
            if isinstance(value, MutableMapping | MutableSequence | MutableSet):
                self.seen[path] = Seen("size", digest(len(value)), f"size {len(value)}")
            for step, part in _parts(value):
                self.places[path + step] = value, step, part
                self.visit(path + step, part, depth - 1)

    def _note_module(self, value: Any) -> None:
        owner = value if isinstance(value, FunctionType | _LruCache) else type(value)
        module = owner.__module__
        if module in sys.modules and is_users_module(module):
            self.modules.add(module)


def _state_of(value: Any) -> Any:
    """Return the state of a random generator; None for anything else."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    return value.get_state() if isinstance(value, torch.Generator) else None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that an object refers to, each with its step in a path."""
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
    elif isinstance(value, FunctionType | _LruCache):
        yield from _kept_by(value.__wrapped__ if isinstance(value, _LruCache) else value)
    elif not isinstance(value, type | ModuleType):
        own = {**getattr(value, "__dict__", {}), **_in_slots(value)}
        yield from ((f".{name}", part) for name, part in own.items())
        if is_users_module(type(value).__module__):  # class variables that no attribute hides
            shared = _variables(type(value))
            yield from ((f".{name}", part) for name, part in shared if name not in own)


def _in_slots(value: Any) -> dict[str, Any]:
    """Return the attributes that a class of the user's keeps in slots."""
    found = {}
    for kind in type(value).__mro__:
        if is_users_module(kind.__module__):
            slots = [
                name for name, part in vars(kind).items() if type(part) is MemberDescriptorType
            ]
            found.update({name: getattr(value, name) for name in slots if hasattr(value, name)})
    return found


def _kept_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function keeps from call to call: closure, defaults, attributes."""
    if not isinstance(function, FunctionType):
        return
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # nothing was assigned to it yet
            yield f".{name}", cell.cell_contents
    yield ".defaults", function.__defaults__
    yield from ((f".{name}", part) for name, part in vars(function).items())


def _variables(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a module or class, and functions with an lru_cache.

    Neither other functions nor classes nor modules.
    """
    for name, value in list(vars(owner).items()):
        is_variable = not callable(value) and not isinstance(value, ModuleType)
        if isinstance(value, _LruCache) or (is_variable and not name.startswith("__")):
            yield name, value


def _name_of(kind: type) -> str:
    owner = {"numpy": "NumPy's ", "torch": "torch's ", "random": "Python's "}
    return owner.get(kind.__module__.partition(".")[0], "") + kind.__qualname__
