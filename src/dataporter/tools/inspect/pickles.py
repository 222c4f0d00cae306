"""A pickle, read without running anything of it.

A pickle is a program: it names functions and has them called. Here a name is never looked up.
What checkpoints are made of has stand-ins, which do nothing; so has any other name, but then what
was read is not returned.
"""

from __future__ import annotations

import io
import pickle
from typing import IO, Any

from dataporter.errors import CheckpointError
from dataporter.tools.inspect.inert import Blank, stand_in

_SHOWN = 5  # names


class _Unpickler(pickle.Unpickler):
    """Knows no class but stand-ins, and notes for which names there are none."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.refused: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        found = stand_in(module, name)
        if found is None:
            self.refused.add(f"{module}.{name}")
            return Blank
        return found

    def persistent_load(self, what: Any) -> Any:
        """What lies elsewhere in a file of torch.save: a tensor's numbers, a class's source."""
        is_class = isinstance(what, tuple) and what[:1] == ("module",)
        return what[1] if is_class else Blank()


def read_pickle(raw: bytes) -> Any:
    """Make builtins and blanks of a pickle; a damaged one raises whatever it leads to.

    >>> read_pickle(pickle.dumps({"epoch": 3}))
    {'epoch': 3}
    >>> read_pickle(pickle.dumps(print))
    Traceback (most recent call last):
    dataporter.errors.CheckpointError: loading it would call builtins.print, which may run...
    """
    return read_next_pickle(io.BytesIO(raw))


def read_next_pickle(file: IO[bytes]) -> Any:
    """Likewise of the pickle that comes next in a file."""
    unpickler = _Unpickler(file)
    try:
        found = unpickler.load()
    except Exception as error:
        if unpickler.refused:
            raise _refusal(sorted(unpickler.refused)) from error
        raise
    if unpickler.refused:
        raise _refusal(sorted(unpickler.refused))
    return found


def _refusal(names: list[str]) -> CheckpointError:
    """Say that something was not read, for the names that it has called or made."""
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    msg = (
        f"loading it would call {shown}, which may run anything. Nothing of it was run: only "
        "tensors, arrays, numbers, strings, times and paths are read, and dicts and lists of those."
    )
    return CheckpointError(msg)
