"""The process's global random generators (Python's, NumPy's, torch's CPU) as one value.

`capture` reads all three, `restore` puts them back, `seed` starts them anew, and `moved` of what
was captured tells which of them were drawn from since. A dataset that draws nothing is asked that
for every batch, and the public calls that read the three take over 40 µs. So they are read and
written in their own memory (`generator_memory`): capturing and asking take 1 µs together. Where
that memory is laid out in an unknown way, the public calls do the work.
"""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import torch

from dataporter.fetch import generator_memory

_memory = generator_memory.find()
_numpy_bits = np.random.get_bit_generator  # type: ignore[attr-defined]  # not in its stubs


# The three, to be added up. Plain numbers: they are looked at for every batch.
PYTHON, NUMPY, TORCH = 1, 2, 4
ALL = PYTHON | NUMPY | TORCH


class Captured(tuple[Any, ...]):
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
        >>> restore(before)
        >>> before.still_holds()
        True
        """
        return not self.moved()

    def moved(self) -> int:
        """Name those of the three that were drawn from since.

        >>> before = capture()
        >>> _ = torch.rand(1)
        >>> before.moved() == TORCH
        True
        """
        changed = [before != now for before, now in zip(self, _by_calls(), strict=True)]
        return sum(
            which
            for which, has_changed in zip((PYTHON, NUMPY, TORCH), changed, strict=True)
            if has_changed
        )

    def restore(self) -> None:
        """Put the three generators back."""
        python, numpy, torchs = self
        random.setstate(python)
        np.random.set_state(pickle.loads(numpy))  # noqa: S301  written by `_by_calls`
        state = torch.frombuffer(bytearray(torchs), dtype=torch.uint8)
        torch.default_generator.set_state(state)


def _by_calls() -> tuple[Any, ...]:
    numpy = pickle.dumps(np.random.get_state(legacy=False))
    return random.getstate(), numpy, torch.default_generator.get_state().numpy().tobytes()


class _InMemory(Captured):
    """The same, as it lies in memory."""

    __slots__ = ()

    def moved(self) -> int:
        memory: Any = _memory
        python, waits, numpy, numpy_waits, torchs = self
        moved = 0
        if not python.startswith(memory.python_tells.raw) or waits != memory.python.gauss_next:
            moved = PYTHON
        if (
            not numpy.endswith(memory.numpy_tells.raw)
            or numpy_waits != memory.numpy_waiting.raw
            or _numpy_bits() is not memory.numpy
        ):
            moved |= NUMPY
        if not torchs.startswith(memory.torch_tells.raw) or not torchs.endswith(
            memory.torch_waiting.raw
        ):
            moved |= TORCH
        return moved

    def restore(self) -> None:
        memory: Any = _memory
        python, memory.python.gauss_next, numpy, numpy_waits, torchs = self
        memory.python_whole.raw = python
        memory.numpy_whole.raw, memory.numpy_waiting.raw = numpy, numpy_waits
        memory.torch_whole.raw = torchs


def capture() -> Captured:
    """Read the three generators, changing nothing."""
    memory = _memory
    if memory is None or _numpy_bits() is not memory.numpy:  # somebody has put in another one
        return Captured(_by_calls())
    return _InMemory(
        (
            memory.python_whole.raw,
            memory.python.gauss_next,
            memory.numpy_whole.raw,
            memory.numpy_waiting.raw,
            memory.torch_whole.raw,
        )
    )


def restore(captured: Captured) -> None:
    """Put the three generators back to where `capture` found them."""
    captured.restore()


_LARGEST_INT64 = 2**63 - 1


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
