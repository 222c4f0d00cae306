"""The process's global random generators (Python's, NumPy's, torch's CPU) as one value.

`capture` reads all three, `restore` puts them back, `seed_all` starts them anew. Captured
values compare equal exactly when no draw lies between them. Reading is on the path of
every batch, so it takes the cheap way: about 12 µs where the public calls take 45.
"""

from __future__ import annotations

import ctypes
import pickle
import random
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

# NumPy's MT19937 in memory: uint32 key[624], then int32 pos.
_KEY_WORDS = 624
_MT19937_BYTES = 4 * _KEY_WORDS + 4

# (state in memory, whether a second normal number is waiting, that number); for other bit
# generators than MT19937, their whole state pickled.
_NumpyState: TypeAlias = tuple[bytes, int, float] | bytes


class Captured(NamedTuple):
    """The states of the three generators at one moment."""

    python: tuple[Any, ...]
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
        random.getstate(),
        _capture_numpy(),
        torch.default_generator.get_state().numpy().tobytes(),
    )


def restore(captured: Captured) -> None:
    """Put the three generators back to where `capture` found them."""
    random.setstate(captured.python)
    _restore_numpy(captured.numpy)
    state = torch.frombuffer(bytearray(captured.torch), dtype=torch.uint8)
    torch.default_generator.set_state(state)


def seed_all(key: int) -> None:
    """Start the three generators from one 64-bit key."""
    random.seed(key)
    # NumPy's fast seeding takes 32 bits; the longer form costs five times as much.
    np.random.seed(key >> 32)
    torch.default_generator.manual_seed(key)


def _raw_mt19937(bit_generator: Any) -> bytes:
    return ctypes.string_at(bit_generator.ctypes.state_address, _MT19937_BYTES)


def _raw_is_understood() -> bool:
    """Whether the memory of an MT19937 is laid out as this module thinks."""
    probe = np.random.MT19937(1)
    probe.random_raw(3)
    raw, known = _raw_mt19937(probe), probe.state["state"]
    key, position = np.frombuffer(raw, np.uint32)[:_KEY_WORDS], raw[-4:]
    return bool((key == known["key"]).all()) and int.from_bytes(position, "little") == known["pos"]


_RAW_IS_UNDERSTOOD = _raw_is_understood()

# The last raw state in which no normal number was waiting. NumPy's legacy generator makes
# normal numbers in pairs and keeps the second outside of the bit generator's memory, where
# only the slow call sees it. One can come to wait only by a draw, which changes the raw
# state; so while that is as it was, none waits.
_nothing_waits_at = b""


def _capture_numpy() -> _NumpyState:
    global _nothing_waits_at  # noqa: PLW0603  a cache of one value for the one global generator
    bit_generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # not in its stubs
    if not _RAW_IS_UNDERSTOOD or type(bit_generator) is not np.random.MT19937:
        return pickle.dumps(np.random.get_state(legacy=False))
    raw = _raw_mt19937(bit_generator)
    if raw == _nothing_waits_at:
        return raw, 0, 0.0
    known = np.random.get_state(legacy=False)
    waiting, number = int(known["has_gauss"]), float(known["gauss"])
    if waiting:
        return raw, waiting, number
    _nothing_waits_at = raw
    return raw, 0, 0.0


def _restore_numpy(state: _NumpyState) -> None:
    if isinstance(state, bytes):
        np.random.set_state(pickle.loads(state))  # noqa: S301  written by _capture_numpy
        return
    raw, waiting, number = state
    words = np.frombuffer(raw, np.uint32)
    position = int.from_bytes(raw[-4:], "little")
    np.random.set_state(("MT19937", words[:_KEY_WORDS], position, waiting, number))
