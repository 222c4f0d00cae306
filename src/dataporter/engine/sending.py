"""Objects on their way into a process that does not inherit them.

    object ──▶ pickle: a file of its own ─────────────────────────▶ unpickled in one process
         └───▶ large buffers: one file for all processes ─────────▶ mapped by each

An array of gigabytes is copied once, however many processes it is sent to, and takes its memory
once. A process that changes such an array changes a copy of its own, page by page. Buffers are
those of pickle's protocol 5: NumPy's arrays and all that is made of them. Tensors are shared by
torch itself.

Such a process imports the main module from its file. A notebook, an interactive session and
`python -c` have no such file. A script that is read from stdin has one in name only, and no process
starts that imports it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
from collections.abc import Callable, Iterable
from multiprocessing.reduction import ForkingPickler
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np

from dataporter.errors import WorkerStartError
from dataporter.system.memory import libc, unnamed_file

_LARGE = 2**16  # bytes; smaller buffers stay in the pickle
_MOST_WRITTEN = 2**30  # bytes at a time

Place: TypeAlias = tuple[int, int]  # offset and size of a buffer


class Bulk:
    """The file of large buffers. A buffer that was placed before is not copied again.

    >>> import io
    >>> bulk, array = Bulk(), np.arange(100_000)
    >>> first, again = io.BytesIO(), io.BytesIO()
    >>> places = bulk.dump(array, first)
    >>> bulk.dump(array, again) == places
    True
    >>> with mapped(bulk.descriptor) as memory:
    ...     bool((load(first.getvalue(), places, memoryview(memory).toreadonly()) == array).all())
    True
    >>> bulk.close()
    """

    def __init__(self) -> None:
        self.descriptor = unnamed_file()
        self._places: list[Place] = []  # of the object that was sent last
        self._end = 0

    def dump(self, thing: Any, stream: Any) -> list[Place]:
        """Pickle an object into `stream`. Returns the places of its large buffers."""
        before, places = iter(self._places), list[Place]()

        def keeps_in_pickle(buffer: pickle.PickleBuffer) -> bool:
            with buffer.raw() as raw:
                if len(raw) < _LARGE:
                    return True
                known = next(before, None)
                places.append(known if known and self._has(known, raw) else self._placed(raw))
                return False

        pickler = _Pickler if is_main_importable() else _PicklerWithoutMain
        pickler(stream, keeps_in_pickle).dump(thing)
        self._places = places
        return places

    def _has(self, place: Place, raw: memoryview) -> bool:
        """Tell whether these bytes lie at a place. An object sent again has the same buffers."""
        offset, size = place
        if size != len(raw):
            return False
        with mapped(self.descriptor) as memory:
            here = ctypes.c_char.from_buffer(memory, offset)
            there = np.frombuffer(raw, np.uint8).ctypes.data
            same: bool = libc.memcmp(ctypes.addressof(here), there, size) == 0
            del here  # it would keep the mapping from being closed
        return same

    def _placed(self, raw: memoryview) -> Place:
        offset = -(-self._end // mmap.PAGESIZE) * mmap.PAGESIZE
        self._end = end = offset
        # Not through a mapping, which the system would have to set up page by page.
        while end < offset + len(raw):
            start = end - offset
            end += os.pwrite(self.descriptor, raw[start : start + _MOST_WRITTEN], end)
        self._end = end
        return offset, len(raw)

    def close(self) -> None:
        """Close the file. Processes that have mapped it keep their memory."""
        os.close(self.descriptor)


class _Pickler(ForkingPickler):
    """A pickler with the reducers of `multiprocessing`, and buffers outside of the pickle."""

    def __init__(self, stream: Any, keeps_in_pickle: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(stream, 5)
        reducers = self.dispatch_table
        # Once more: ForkingPickler does not hand on the callback.
        pickle.Pickler.__init__(self, stream, 5, buffer_callback=keeps_in_pickle)
        self.dispatch_table = reducers


class _PicklerWithoutMain(_Pickler):
    """A pickler for processes that cannot import the main module: refuses what is defined there."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type | FunctionType) and thing.__module__ == "__main__":
            kind = "class" if isinstance(thing, type) else "function"
            name = thing.__qualname__
            if "<" not in name:  # nobody can send a lambda or a local class: pickle says so
                msg = (
                    f"{kind} {name} is defined in a notebook, an interactive session or a command "
                    "(__main__), which no other process can import"
                )
                raise pickle.PicklingError(msg)
        return NotImplemented


def load(pickled: Any, places: Iterable[Place], bulk: memoryview | None) -> Any:
    """Rebuild an object. Its large buffers stay in `bulk`."""
    buffers = [] if bulk is None else [bulk[start : start + size] for start, size in places]
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301  from the parent process


def mapped(descriptor: int) -> mmap.mmap:
    """Map a whole file. Writes to the mapping stay in this process."""
    return mmap.mmap(descriptor, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)


def is_main_importable() -> bool:
    """Tell whether other processes have what is defined in the main module of this one."""
    return bool({"init_main_from_name", "init_main_from_path"} & _main_module().keys())


def check_main_file(method: str) -> None:
    """Raise if a process started by this method would look in vain for the main script."""
    path = Path(_main_module().get("init_main_from_path", "script.py"))
    # A file that was deleted is another matter: a fork server may have imported it before.
    if not path.name.startswith("<") or path.exists():
        return
    msg = (
        f"the script comes from {path.name}, but a worker started by {method!r} has to import it. "
        "Save the script as a file and run that, or use multiprocessing_context='fork'."
    )
    raise WorkerStartError(msg)


def _main_module() -> dict[str, str]:
    """Return what a new process is told about the main module."""
    return get_preparation_data("")
