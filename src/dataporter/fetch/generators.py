"""The process's global random generators (Python's, NumPy's, torch's CPU) as one value.

`capture` reads all three, and `seed` starts them anew. What was captured tells by `moved` which of
them were drawn from since, and puts them back by `restore`. Datasets that draw nothing are asked
for draws at every batch, and the public calls that read the three take over 40 µs. So they are
read and written in their own memory (`generator_memory`): capturing and asking take 1 µs together.
Where that memory is laid out in an unknown way, the public calls do the work.
"""

from __future__ import annotations

import logging
import pickle
import platform
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dataporter.errors import SharedGeneratorError
from dataporter.fetch.generator_memory import GeneratorMemory, find_memory

_memory = find_memory()


def why_slow() -> str:
    """Say why the three are read by public calls, and at what cost; nothing if they are not."""
    if _memory is None:
        releases = f"torch {torch.__version__}, NumPy {np.__version__} or Python"
        why = (
            f"Their memory is laid out in an unknown way by {releases} {platform.python_version()}"
        )
    elif np.random.get_bit_generator() is not _memory.numpy:  # type: ignore[attr-defined]
        why = "NumPy's global generator has been replaced"
    else:
        return ""
    return f"Asking the random generators for draws takes about 40 µs a batch, not 1 µs. {why}."


if _memory is None:
    logging.getLogger(__name__).debug(why_slow())

# The three, to be added up. Plain numbers: they are looked at for every batch.
PYTHON, NUMPY, TORCH = _EACH = 1, 2, 4
ALL = PYTHON | NUMPY | TORCH


class Captured(ABC):
    """The states of the three generators at one moment."""

    __slots__ = ()

    def still_holds(self) -> bool:
        """Return True if nothing was drawn from any of the three since.

        >>> before = capture()
        >>> before.still_holds()
        True
        >>> _ = random.random()
        >>> before.still_holds()
        False
        >>> before.restore()
        >>> before.still_holds()
        True
        """
        return not self.moved()

    @abstractmethod
    def moved(self) -> int:
        """Name those of the three that were drawn from since.

        >>> before = capture()
        >>> _ = torch.rand(1)
        >>> before.moved() == TORCH
        True
        """

    @abstractmethod
    def restore(self) -> None:
        """Put the three generators back."""


class _ByCalls(Captured):
    """The states as the public calls return them, NumPy's and torch's as bytes."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states = self._read()

    @staticmethod
    def _read() -> tuple[Any, bytes, bytes]:
        numpy = pickle.dumps(np.random.get_state(legacy=False))
        return random.getstate(), numpy, torch.default_generator.get_state().numpy().tobytes()

    def moved(self) -> int:
        each = zip(_EACH, self._states, self._read(), strict=True)
        return sum(which for which, one, other in each if one != other)

    def restore(self) -> None:
        python, numpy, torchs = self._states
        random.setstate(python)
        np.random.set_state(pickle.loads(numpy))  # noqa: S301  written by `_read`
        state = torch.frombuffer(bytearray(torchs), dtype=torch.uint8)
        torch.default_generator.set_state(state)


class _InMemory(Captured):
    """The states as they lie in memory: the parts that tell of a draw, and copies of all."""

    __slots__ = ("_copies", "_tell", "_torch")

    def __init__(self, memory: GeneratorMemory) -> None:
        self._copies = [memoryview(bytearray(len(whole))) for whole in memory.wholes]
        self._tell: Any = None
        self._torch: Any = None
        self.take(memory)

    def take(self, memory: GeneratorMemory) -> None:
        """Read the generators now, unless what was read of them still holds."""
        tell = memory.tell()
        if tell != self._tell:
            if self._tell is None or tell[2] != self._tell[2]:
                self._torch = torch.default_generator.get_state()
            self._tell = tell
            # No memory is asked for: that costs more than to copy it.
            python, numpy = self._copies
            python[:], numpy[:] = memory.wholes

    def moved(self) -> int:
        memory: Any = _memory
        now, before = memory.tell(), self._tell
        if now == before:
            return 0
        return sum(
            which for which, one, other in zip(_EACH, now, before, strict=True) if one != other
        )

    def restore(self) -> None:
        memory: Any = _memory
        memory.wholes[0][:], memory.wholes[1][:] = self._copies
        torch.default_generator.set_state(self._torch)
        (_, memory.python.gauss_next), (_, memory.numpy_waiting.raw, _), _ = self._tell


def capture(into: Captured | None = None) -> Captured:
    """Read the three generators, changing nothing; into what is no longer needed, if given."""
    memory = _memory
    if memory is None or np.random.get_bit_generator() is not memory.numpy:  # type: ignore[attr-defined]
        return _ByCalls()  # somebody may have put another generator in NumPy's place
    if type(into) is not _InMemory:
        return _InMemory(memory)
    into.take(memory)
    return into


_LARGEST_INT64 = 2**63 - 1


@contextmanager
def draws_refused() -> Iterator[None]:
    """Raise if a block has drawn from the three, which all threads of a process share.

    >>> with draws_refused():
    ...     _ = random.random()
    Traceback (most recent call last):
        ...
    dataporter.errors.SharedGeneratorError: the dataset draws from the global random generators...
    """
    before = capture()
    yield
    if before.still_holds():
        return
    before.restore()
    msg = (
        "the dataset draws from the global random generators, which all threads share. Samples "
        "would depend on which thread runs when. Draw from dataporter.sample_rng() instead, use "
        "engine='processes', or pass randomness=False to allow it."
    )
    raise SharedGeneratorError(msg)


def seed_all(key: int) -> None:
    """Start the three generators from one 64-bit key."""
    seed(key, ALL)


def seed(key: int, which: int) -> None:
    """Start some of the three generators from one 64-bit key."""
    if which & PYTHON:
        random.seed(key)
    if which & NUMPY:
        # The fast seeding takes 32 bits; the longer form costs five times as much.
        np.random.seed(key >> 32)
    if which & TORCH:
        # Below 2**63 as torch's own seeds are: a dataset may return initial_seed() to be collated.
        torch.default_generator.manual_seed(key & _LARGEST_INT64)
