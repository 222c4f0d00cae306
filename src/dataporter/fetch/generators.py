"""The process's global random generators (Python's, NumPy's, torch's CPU) as one value.

`capture` reads all three, `restore` puts them back, `seed_all` starts them anew, and
`Captured.still_holds` tells whether anything was drawn since. That question is asked once
for every batch of a dataset that draws nothing, and the public calls for Python's and
NumPy's state take 9 and 33 µs, those that set it as long. So their memory is read and
written where it was found, at import, to be laid out as expected; elsewhere the public
calls do the work. Capturing and asking take 2.5 µs together.

One thing is not seen: a caller that puts NumPy's generator back to a state in which a second
normal number waits, having used that number up before, may find it used up again.

All three are Mersenne Twisters: 624 words and an index. A draw moves the index, or makes
all words anew when it wraps; seeding replaces both. So index and a few words tell.
"""

from __future__ import annotations

import ctypes
import functools
import pickle
import random
import sys
from typing import Any, TypeAlias

import numpy as np
import torch

_WORDS = 624
_BYTES = 4 * _WORDS + 4
_FEW = 16  # bytes of words that are looked at; the very first word is the same for all seeds

# The states as they are kept: (memory, normal number that waits). Generators that make
# normal numbers in pairs keep the second for later, beside the twister's memory. Where the
# memory is not understood: what the public call returns, NumPy's pickled.
_PythonState: TypeAlias = tuple[Any, ...]
_NumpyState: TypeAlias = tuple[bytes, float | None] | bytes


class Captured:
    """The states of the three generators at one moment."""

    __slots__ = ("numpy", "python", "torch")

    def __init__(self, python: _PythonState, numpy: _NumpyState, torch: torch.Tensor) -> None:
        self.python = python
        self.numpy = numpy
        self.torch = torch

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
        return (
            _bytes_of(self.torch) == _bytes_of(torch.default_generator.get_state())
            and _python_still_holds(self.python)
            and _numpy_still_holds(self.numpy)
        )


def capture() -> Captured:
    """Read the three generators, changing nothing."""
    return Captured(_capture_python(), _capture_numpy(), torch.default_generator.get_state())


def restore(captured: Captured) -> None:
    """Put the three generators back to where `capture` found them."""
    _restore_python(captured.python)
    _restore_numpy(captured.numpy)
    torch.default_generator.set_state(captured.torch)


_LARGEST_INT64 = 2**63 - 1


def seed_all(key: int) -> None:
    """Start the three generators from one 64-bit key."""
    random.seed(key)
    # NumPy's fast seeding takes 32 bits; the longer form costs five times as much.
    np.random.seed(key >> 32)
    _note_that_nothing_waits()
    # Below 2**63 as torch's own seeds are: a dataset may return initial_seed() to be collated.
    torch.default_generator.manual_seed(key & _LARGEST_INT64)


def _view(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * size).from_address(address)


_torch_bytes = ctypes.c_char * torch.default_generator.get_state().numel()


def _bytes_of(state: torch.Tensor) -> bytes:
    # A third of the cost of state.numpy().tobytes().
    return _torch_bytes.from_address(state.data_ptr()).raw


# Python keeps the index, then the words, as the first fields after the object's header.
_python_generator: random.Random = random.random.__self__  # type: ignore[attr-defined]
_python_memory = _view(id(_python_generator) + object.__basicsize__, _BYTES)
_python_probe = _view(id(_python_generator) + object.__basicsize__, 4 + _FEW)


def _python_is_understood() -> bool:
    """Return True if the memory of a `random.Random` has the expected layout."""
    if sys.implementation.name != "cpython" or type(_python_generator) is not random.Random:
        return False
    probe = random.Random(1)
    probe.random()
    memory = _view(id(probe) + object.__basicsize__, _BYTES).raw
    index, *words = np.frombuffer(memory, np.uint32).tolist()
    return bool((*words, index) == probe.getstate()[1])


_PYTHON_IS_UNDERSTOOD = _python_is_understood()


def _capture_python() -> _PythonState:
    if not _PYTHON_IS_UNDERSTOOD:
        return random.getstate()
    return _python_memory.raw, _python_generator.gauss_next  # type: ignore[attr-defined]


def _python_still_holds(state: _PythonState) -> bool:
    if not _PYTHON_IS_UNDERSTOOD:
        return bool(random.getstate() == state)
    memory, waiting = state
    return bool(
        memory.startswith(_python_probe.raw) and waiting == _python_generator.gauss_next  # type: ignore[attr-defined]
    )


def _restore_python(state: _PythonState) -> None:
    if not _PYTHON_IS_UNDERSTOOD:
        random.setstate(state)
        return
    memory, waiting = state
    ctypes.memmove(_python_memory, memory, _BYTES)
    _python_generator.gauss_next = waiting  # type: ignore[attr-defined]


class _NumpyMemory:
    """The memory of one of NumPy's MT19937: the words, then the index."""

    __slots__ = ("all", "few", "index")

    def __init__(self, bit_generator: Any) -> None:
        address = bit_generator.ctypes.state_address
        self.all = _view(address, _BYTES)
        self.few = _view(address, 4 + _FEW)
        self.index = _view(address + _BYTES - 4, 4)


_numpy_memory_of = functools.lru_cache(maxsize=1)(_NumpyMemory)


def _numpy_is_understood() -> bool:
    """Return True if the memory of an MT19937 has the expected layout."""
    probe = np.random.MT19937(1)
    probe.random_raw(3)
    *words, index = np.frombuffer(_NumpyMemory(probe).all.raw, np.uint32).tolist()
    known = probe.state["state"]
    return bool(words == known["key"].tolist() and index == known["pos"])


_NUMPY_IS_UNDERSTOOD = _numpy_is_understood()


def _numpy_memory() -> _NumpyMemory | None:
    """The memory of NumPy's global generator, None where it is not understood."""
    bit_generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # not in its stubs
    if not _NUMPY_IS_UNDERSTOOD or type(bit_generator) is not np.random.MT19937:
        return None
    return _numpy_memory_of(bit_generator)


# NumPy's waiting number is seen by the slow call only. One comes to wait only by a draw,
# which changes the memory; so none waits while that is as it was when none waited.
_nothing_waits_at = b""


def _note_that_nothing_waits() -> None:
    global _nothing_waits_at  # noqa: PLW0603  a cache of one value for the one global generator
    memory = _numpy_memory()
    _nothing_waits_at = b"" if memory is None else memory.all.raw


def _capture_numpy() -> _NumpyState:
    memory = _numpy_memory()
    if memory is None:
        return pickle.dumps(np.random.get_state(legacy=False))
    raw = memory.all.raw
    if raw == _nothing_waits_at:
        return raw, None
    known = np.random.get_state(legacy=False)
    if known["has_gauss"]:
        return raw, float(known["gauss"])
    _note_that_nothing_waits()
    return raw, None


def _numpy_still_holds(state: _NumpyState) -> bool:
    memory = _numpy_memory()
    if memory is None or isinstance(state, bytes) or state[1] is not None:
        return _capture_numpy() == state
    raw = state[0]
    return raw.startswith(memory.few.raw) and raw.endswith(memory.index.raw)


def _restore_numpy(state: _NumpyState) -> None:
    if isinstance(state, bytes):
        np.random.set_state(pickle.loads(state))  # noqa: S301  written by _capture_numpy
        return
    raw, waiting = state
    memory = _numpy_memory()
    if memory is not None and waiting is None and memory.all.raw == _nothing_waits_at:
        # Nothing waits there and then: the memory is all there is to it.
        ctypes.memmove(memory.all, raw, _BYTES)
        _note_that_nothing_waits()
        return
    words = np.frombuffer(raw, np.uint32)
    has_waiting, number = int(waiting is not None), waiting or 0.0
    np.random.set_state(("MT19937", words[:-1], int(words[-1]), has_waiting, number))
