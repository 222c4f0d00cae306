"""The process's global random generators (Python's, NumPy's, torch's CPU) as one value.

`capture` reads all three, `restore` puts them back, `seed_all` starts them anew, and
`still_holds` of what was captured tells whether anything was drawn since. A dataset that draws
nothing is asked that for every batch, and the public calls that read the three take over 40 µs. So
they are read and written in their own memory (`generator_memory`): capturing and asking take
1 µs together. Where that memory is laid out in an unknown way, the public calls do the work.
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
        return tuple(self) == _by_calls()

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

    def still_holds(self) -> bool:
        memory: Any = _memory
        python, waits, numpy, numpy_waits, torchs = self
        return (
            torchs.startswith(memory.torch_tells.raw)
            and torchs.endswith(memory.torch_waiting.raw)
            and python.startswith(memory.python_tells.raw)
            and waits == memory.python.gauss_next
            and numpy.endswith(memory.numpy_tells.raw)
            and numpy_waits == memory.numpy_waiting.raw
            and _numpy_bits() is memory.numpy
        )

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
    random.seed(key)
    # NumPy's fast seeding takes 32 bits; the longer form costs five times as much.
    np.random.seed(key >> 32)
    # Below 2**63 as torch's own seeds are: a dataset may return initial_seed() to be collated.
    torch.default_generator.manual_seed(key & _LARGEST_INT64)
