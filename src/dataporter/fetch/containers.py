"""The containers that batches are made of: their parts, and the same container with others.

Nothing is changed in place. A container with new parts is of the same class and keeps what
else it holds: a defaultdict its factory, a dict subclass or dataclass its other attributes.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from dataporter.errors import ConversionError


def parts_of(container: Any) -> Iterator[tuple[Any, str, Any]] | None:
    """Yield (key, step, part) of a container; None for anything else.

    A step is how the key is written in a path.

    >>> list(parts_of({"x": 1, 7: 2})), list(parts_of(("a", "b")))
    ([('x', 'x', 1), (7, '[7]', 2)], [(0, '[0]', 'a'), (1, '[1]', 'b')])
    """
    if isinstance(container, Mapping):
        return ((key, _step(key), container[key]) for key in container)
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return ((name, name, getattr(container, name)) for name in container._fields)
    if isinstance(container, list | tuple) and type(container) is not torch.Size:
        return ((number, f"[{number}]", part) for number, part in enumerate(container))
    if is_dataclass(container) and not isinstance(container, type):
        # A field without a value is one that nothing was assigned to yet.
        names = [f.name for f in fields(container) if hasattr(container, f.name)]
        return ((name, name, getattr(container, name)) for name in names)
    return None


def _step(key: Any) -> str:
    return key if isinstance(key, str) else f"[{key!r}]"


def joined(path: str, step: str) -> str:
    """Write a path with one more step.

    >>> joined("inputs", "image"), joined("arrays", "[0]"), joined("", "image")
    ('inputs.image', 'arrays[0]', 'image')
    """
    return f"{path}.{step}" if path and not step.startswith("[") else path + step


def changed(container: Any, change: Callable[[Any], Any]) -> Any:
    """Make the same container of what `change` makes of its parts; itself if all stay.

    What is no container is returned as it is, and so is a list of plain values.

    >>> changed({"x": 1, "y": "a"}, lambda part: part * 2)
    {'x': 2, 'y': 'aa'}
    """
    parts = None if is_plain_list(container) else parts_of(container)
    if parts is None:
        return container
    new = {}
    for key, _, part in parts:
        after = change(part)
        if after is not part:
            new[key] = after
    return with_parts(container, new, "") if new else container


def is_plain_list(container: Any) -> bool:
    """Return True for a list without tensors or containers, such as a column of strings.

    >>> is_plain_list(["a", "b"]), is_plain_list([["a"]])
    (True, False)
    """
    return type(container) is list and _PLAIN.issuperset(map(type, container))


_PLAIN = {str, bytes, type(None), bool, int, float, complex}


def with_parts(container: Any, new: dict[Any, Any], path: str) -> Any:
    """Make the same container with some parts replaced, by key.

    >>> with_parts((1, 2), {1: "b"}, "")
    (1, 'b')
    """
    kind = type(container)
    if kind is dict:
        return {**container, **new}
    try:
        return _rebuilt(container, new)
    except Exception as error:
        msg = (
            f"{path or 'the batch'}: a {kind.__name__} cannot be made anew with other parts "
            f"({type(error).__name__}: {error}). Change its parts before they go into it."
        )
        raise ConversionError(msg) from error


def _rebuilt(container: Any, new: dict[Any, Any]) -> Any:
    kind = type(container)
    if isinstance(container, Mapping):
        # A shallow copy of any other mapping may share with the original where its items lie.
        if not isinstance(container, dict | UserDict) and not hasattr(kind, "__copy__"):
            return kind({**container, **new})
        return _assigned(container, new)
    if isinstance(container, tuple):
        if hasattr(container, "_fields"):
            return container._replace(**new)  # type: ignore[attr-defined]  # as namedtuples do
        return kind(new.get(number, part) for number, part in enumerate(container))
    if isinstance(container, list):
        return _assigned(container, new)
    clone = copy.copy(container)
    for name, part in new.items():
        object.__setattr__(clone, name, part)  # a frozen one has no other way
    return clone


def _assigned(container: Any, new: dict[Any, Any]) -> Any:
    clone = copy.copy(container)
    for key, part in new.items():
        clone[key] = part
    return clone
