"""A plain pickle, read without running anything of it.

A pickle is a program: it names functions and has them called. Here a name is never looked up.
Names of libraries that checkpoints are made of become blanks, which take whatever they are
called with and do nothing; any other name ends the reading.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from dataporter.errors import CheckpointError

_BLANKED = {"collections", "numpy", "pathlib", "torch", "torchdata"}
_GETATTR = ("builtins", "getattr")  # how a pickle names some functions of torch; a blank too


class Blank(dict[Any, Any]):
    """Stands for an object of some class: keeps its items and attributes, and is inert.

    A dict, since what may hold a state inside is an OrderedDict more often than not.
    """

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    __hash__ = object.__hash__  # type: ignore[assignment]  # it may be a key
    __eq__ = object.__eq__

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __reduce__(self) -> Any:
        return dict, ()  # states are copied and packed when they are parsed

    def __call__(self, *_: object) -> Blank:
        return Blank()

    def append(self, _: object) -> None:
        """A list of some class: its parts are left out."""

    extend = add = append


class _Unpickler(pickle.Unpickler):
    """Knows no class but `Blank`."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _BLANKED and (module, name) != _GETATTR:
            raise refusal([f"{module}.{name}"])
        return type(name, (Blank,), {"__module__": module})


def read_pickle(raw: bytes) -> Any:
    """Make builtins and blanks of a pickle; a damaged one raises whatever it leads to.

    >>> read_pickle(pickle.dumps({"epoch": 3}))
    {'epoch': 3}
    >>> read_pickle(pickle.dumps(print))
    Traceback (most recent call last):
    dataporter.errors.CheckpointError: loading it would call builtins.print, which may run...
    """
    return _Unpickler(io.BytesIO(raw)).load()


def refusal(names: list[str]) -> CheckpointError:
    """Say that something was not read, for the names that it has called or made."""
    shown = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")  # noqa: PLR2004  as many as shown
    msg = (
        f"loading it would call {shown}, which may run anything. Nothing of it was run: only what "
        "torch.load takes with weights_only=True is read, which is tensors, numbers, strings, and "
        "dicts and lists of those."
    )
    return CheckpointError(msg)
