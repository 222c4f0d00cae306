"""The process's global random generators (Python's, NumPy's, torch's CPU) as one value.

`capture` reads all three, `restore` puts them back, `seed_all` starts them anew. Captured
values compare equal exactly when no draw lies between them. Reading is on the path of
every batch, and the public calls for Python's and NumPy's generator take 9 and 33 µs. So
their memory is read where it was found, at import, to be laid out as expected: 3 µs for
all three. Elsewhere the public calls do the work.
"""

from __future__ import annotations

import ctypes
import functools
import pickle
import random
import sys
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

# A Mersenne Twister in memory: 624 words and an index. Python keeps the index first, as
# the first field after the object's header; NumPy keeps it last.
_WORDS = 624
_BYTES = 4 * _WORDS + 4

# (memory, waiting normal number): generators that make normal numbers in pairs keep the
# second for later, beside the twister's memory. Or, from the public call, the whole state.
_PythonState: TypeAlias = tuple[bytes, float | None] | tuple[Any, ...]
_NumpyState: TypeAlias = tuple[bytes, float | None] | bytes


class Captured(NamedTuple):
    """The states of the three generators at one moment."""

    python: _PythonState
    numpy: _NumpyState
    torch: bytes


def capture() -> Captured:
    """Read the three generators, changing nothing.

    >>> before = capture()
    >>> capture() == before
    True
    >>> _ = random.random()
    >>> capture() == before
    False
    >>> restore(before)
    >>> capture() == before
    True
    """
    return Captured(
        _capture_python(),
        _capture_numpy(),
        torch.default_generator.get_state().numpy().tobytes(),
    )


def restore(captured: Captured) -> None:
    """Put the three generators back to where `capture` found them."""
    _restore_python(captured.python)
    _restore_numpy(captured.numpy)
    state = torch.frombuffer(bytearray(captured.torch), dtype=torch.uint8)
    torch.default_generator.set_state(state)


def seed_all(key: int) -> None:
    """Start the three generators from one 64-bit key."""
    random.seed(key)
    # NumPy's fast seeding takes 32 bits; the longer form costs five times as much.
    np.random.seed(key >> 32)
    _note_that_nothing_waits()
    torch.default_generator.manual_seed(key)


_python_generator: random.Random = random.random.__self__  # type: ignore[attr-defined]


def _memory_at(address: int) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * _BYTES).from_address(address)


def _python_memory(generator: random.Random) -> ctypes.Array[ctypes.c_char]:
    return _memory_at(id(generator) + object.__basicsize__)


def _python_is_understood() -> bool:
    """Whether the memory of a `random.Random` is laid out as this module thinks."""
    if sys.implementation.name != "cpython" or type(_python_generator) is not random.Random:
        return False
    probe = random.Random(1)
    probe.random()
    words = np.frombuffer(_python_memory(probe).raw, np.uint32)
    return bool((*words[1:].tolist(), int(words[0])) == probe.getstate()[1])


_PYTHON_IS_UNDERSTOOD = _python_is_understood()
_python_view = _python_memory(_python_generator)  # only looked at if it is understood


def _capture_python() -> _PythonState:
    if not _PYTHON_IS_UNDERSTOOD:
        return random.getstate()
    return _python_view.raw, _python_generator.gauss_next  # type: ignore[attr-defined]


def _restore_python(state: _PythonState) -> None:
    if _PYTHON_IS_UNDERSTOOD:
        memory, waiting = state
        index, *words = np.frombuffer(memory, np.uint32).tolist()
        state = (random.Random.VERSION, (*words, index), waiting)
    random.setstate(state)


@functools.lru_cache(maxsize=1)
def _numpy_memory(bit_generator: Any) -> ctypes.Array[ctypes.c_char]:
    return _memory_at(bit_generator.ctypes.state_address)


def _numpy_is_understood() -> bool:
    """Whether the memory of an MT19937 is laid out as this module thinks."""
    probe = np.random.MT19937(1)
    probe.random_raw(3)
    words, known = np.frombuffer(_numpy_memory(probe).raw, np.uint32), probe.state["state"]
    return bool((words[:-1] == known["key"]).all()) and int(words[-1]) == known["pos"]


_NUMPY_IS_UNDERSTOOD = _numpy_is_understood()

# NumPy's waiting number is seen by the slow call only. One comes to wait only by a draw,
# which changes the memory; so none waits while that is as it was when none waited.
_nothing_waits_at = b""


def _note_that_nothing_waits() -> None:
    global _nothing_waits_at  # noqa: PLW0603  a cache of one value for the one global generator
    _nothing_waits_at = _numpy_generator_memory() or b""


def _numpy_generator_memory() -> bytes | None:
    """The memory of NumPy's global generator, None where it is not understood."""
    bit_generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # not in its stubs
    if not _NUMPY_IS_UNDERSTOOD or type(bit_generator) is not np.random.MT19937:
        return None
    return _numpy_memory(bit_generator).raw


def _capture_numpy() -> _NumpyState:
    memory = _numpy_generator_memory()
    if memory is None:
        return pickle.dumps(np.random.get_state(legacy=False))
    if memory == _nothing_waits_at:
        return memory, None
    known = np.random.get_state(legacy=False)
    if known["has_gauss"]:
        return memory, float(known["gauss"])
    _note_that_nothing_waits()
    return memory, None


def _restore_numpy(state: _NumpyState) -> None:
    if isinstance(state, bytes):
        np.random.set_state(pickle.loads(state))  # noqa: S301  written by _capture_numpy
        return
    memory, waiting = state
    words = np.frombuffer(memory, np.uint32)
    has_waiting, number = int(waiting is not None), waiting or 0.0
    np.random.set_state(("MT19937", words[:-1], int(words[-1]), has_waiting, number))
