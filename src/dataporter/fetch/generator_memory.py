"""The memory of the process's global random generators: where it lies, to be read and written.

The three are Mersenne Twisters: 624 words, and an index beside them. The words are looked for in
the memory of a generator whose state is known. What is found is tried: written back, it must
undo draws. Where that fails, `find_memory` returns None, and the public calls have to do.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from dataporter.system.memory import allocated

_WORDS = 624
_SIZE = 4 * _WORDS
_FEW = 16  # bytes of words that are looked at; the very first word is the same for all seeds
_LARGEST = 1 << 16  # bytes of a torch generator; what seems to have more is something else


def view(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Return memory as an object: `raw` reads it as bytes."""
    return (ctypes.c_char * size).from_address(address)


class GeneratorMemory:
    """The memory of the three: `tell` reads the parts that any draw changes.

    `wholes` is all of Python's and NumPy's, to be copied and written. Torch's is only read: its
    public calls are as fast, and wait for a thread that draws.

    Every draw changes an index; at its wrap, or when it is seeded, all words change. So the index
    and a few words tell, and lie side by side in each. Normal numbers are made in pairs: the
    second one waits beside the words, for Python as an attribute.

    Of torch's the seed tells too: different ones may have the same words. The place of a number
    that does not wait holds whatever lay on the stack when it was set.
    """

    def __init__(self, numpy_words: int, numpy_waiting: int, torch_words: int) -> None:
        self.python = _python_generator()
        index = id(self.python) + object.__basicsize__
        self._python_tells = view(index, 4 + _FEW)

        self.numpy = _numpy_bits()
        words = id(self.numpy) + numpy_words
        self._numpy_tells = view(words + _SIZE - _FEW, _FEW + 4)
        self.numpy_waiting = view(id(_numpy_generator()) + numpy_waiting, 16)

        engine = _address(torch.default_generator) + torch_words - _TORCH_HEAD
        self._torch_seed = view(engine, 8)
        self._torch_tells = view(engine + _TORCH_HEAD - 4, 4 + _FEW)
        self._torch_waiting = view(engine + _TORCH_SIZE - _TORCH_WAITING, _TORCH_WAITING)

        parts = ((index, 4 + _SIZE), (words, _SIZE + 4))
        self.wholes = [memoryview(view(*part)).cast("B") for part in parts]

    def tell(self) -> tuple[tuple[bytes, Any], tuple[bytes, bytes, Any], tuple[bytes, bytes, Any]]:
        """Read what tells of a draw, of Python's, NumPy's and torch's."""
        waiting = self._torch_waiting.raw
        one_waits, other_waits = waiting[_FLOAT_WAITS], waiting[_DOUBLE_WAITS]
        return (
            (self._python_tells.raw, self.python.gauss_next),
            (self._numpy_tells.raw, self.numpy_waiting.raw, _numpy_bits()),
            (
                self._torch_seed.raw,
                self._torch_tells.raw,
                (one_waits and waiting[:4], other_waits and waiting[8:16])
                if one_waits or other_waits
                else None,
            ),
        )


# Before torch's words: a seed of 8 bytes, then what remains, whether seeded, and the next word's
# index, of 4 each. After them, 4 bytes of padding and two numbers that may wait: float, double.
# Behind each of the two is one byte that says whether it waits, and padding.
_TORCH_HEAD = 20
_TORCH_WAITING = 24
_FLOAT_WAITS, _DOUBLE_WAITS = 4, 16
_TORCH_SIZE = _TORCH_HEAD + _SIZE + 4 + _TORCH_WAITING


def find_memory() -> GeneratorMemory | None:
    """Find the memory of the three; None if any of them is laid out in an unknown way."""
    if sys.implementation.name != "cpython" or not _python_is_understood():
        return None
    numpy_words, numpy_waiting = _numpy_words(), _numpy_waiting()
    torch_words = _torch_words()
    if numpy_words is None or numpy_waiting is None or torch_words is None:
        return None
    return GeneratorMemory(numpy_words, numpy_waiting, torch_words)


_numpy_bits = np.random.get_bit_generator  # type: ignore[attr-defined]  # not in its stubs


def _python_generator() -> Any:
    return _owner(random.random)


def _numpy_generator() -> Any:
    return _owner(np.random.random)


def _owner(method: Any) -> Any:
    """Return the object of a method; None if somebody has put a function in its place."""
    return getattr(method, "__self__", None)


def _undoes(
    memory: ctypes.Array[ctypes.c_char], draw: Callable[[], object], state: Callable[[], object]
) -> bool:
    """Return True if draws change memory, and are undone by writing it back."""
    before, known = memory.raw, state()
    draw()
    if memory.raw == before or state() == known:
        return False
    memory.raw = before
    return state() == known


def _python_is_understood() -> bool:
    """Return True if a `random.Random` has its index, then its words, after the object's header."""
    if type(_python_generator()) is not random.Random:
        return False
    probe = random.Random(1)
    probe.random()
    memory = view(id(probe) + object.__basicsize__, 4 + _SIZE)
    index, *words = struct.unpack(f"={_WORDS + 1}I", memory.raw)
    return (*words, index) == probe.getstate()[1] and _undoes(memory, probe.random, probe.getstate)


def _numpy_words() -> int | None:
    """Return where a MT19937 has its words, and then its index."""
    if type(_numpy_bits()) is not np.random.MT19937:
        return None
    probe = np.random.MT19937(1)
    words = probe.state["state"]["key"].tobytes()
    found = ctypes.string_at(id(probe), type(probe).__basicsize__).find(words)
    if found < 0:
        return None
    memory = view(id(probe) + found, _SIZE + 4)
    understood = _undoes(memory, probe.random_raw, lambda: pickle.dumps(probe.state))
    return found if understood else None


def _numpy_waiting() -> int | None:
    """Return where a RandomState has whether a normal number waits, and then that number."""
    generator = _numpy_generator()
    if type(generator) is not np.random.RandomState:
        return None
    probe = np.random.RandomState(np.random.MT19937(1))
    probe.standard_normal()
    *_, has_waiting, waiting = probe.get_state()
    size = type(probe).__basicsize__
    found = ctypes.string_at(id(probe), size).find(struct.pack("=qd", has_waiting, waiting))
    if found < 0:
        return None
    memory = view(id(probe) + found, 16)
    # The second normal number is there already: to draw it changes nothing else.
    understood = _undoes(memory, probe.standard_normal, lambda: pickle.dumps(probe.get_state()))
    return found if understood else None


def _torch_words() -> int | None:
    """Return where a torch.Generator has its words, counted from its address."""
    probe = torch.Generator().manual_seed(1)
    address = _address(probe)
    if not address:
        return None
    # A state has the same words, of 8 bytes each, after 24 other bytes.
    words = np.frombuffer(_torch_state(probe)[24 : 24 + 2 * _SIZE], np.uint64).astype(np.uint32)
    found = _found(words.tobytes(), address)
    if found is None:
        return None
    memory = view(address + found - _TORCH_HEAD, _TORCH_SIZE)
    # The first normal number leaves a second one, which waits; the next takes that.
    for waits in (1, 0):
        if not _undoes(memory, partial(_draw_normal, probe), partial(_torch_state, probe)):
            return None
        _draw_normal(probe)
        if memory.raw[-_TORCH_WAITING:][_DOUBLE_WAITS] != waits:
            return None
    return found


def _found(words: bytes, address: int) -> int | None:
    """Return where words lie in the allocation at an address. Nothing else is read."""
    size = allocated(address)
    if not len(words) < size < _LARGEST:
        return None
    found = ctypes.string_at(address, size).find(words)
    is_whole = found >= _TORCH_HEAD and found - _TORCH_HEAD + _TORCH_SIZE <= size
    return found if is_whole else None


def _draw_normal(generator: torch.Generator) -> None:
    torch.randn(1, generator=generator, device="cpu")  # whatever the default device is


def _address(generator: torch.Generator) -> int:
    """Return the address of a generator's memory, 0 if torch does not tell it."""
    return int(getattr(generator, "_cdata", 0))


def _torch_state(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())
