"""Keys: from (seed, epoch, purpose) to bits that share nothing with their neighbours.

A key is always a hash of all its parts. Sums such as `seed + epoch` are not keys: they
make (seed 1, epoch 0) and (seed 0, epoch 1) the same run.
"""

from __future__ import annotations

import hashlib
import operator
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import OptionError, OptionTypeError

MAX_SEED = 2**64 - 1
_MASK = 2**64 - 1


def derive_key(purpose: str, *parts: int | str, num_bytes: int = 8) -> bytes:
    """Hash a purpose and its parts into `num_bytes` (at most 64) bytes.

    >>> derive_key("order", 1, 0) == derive_key("order", 0, 1)
    False
    >>> derive_key("order", 12, 3) == derive_key("order", 1, 23)
    False
    """
    # repr and a separator keep (12, 3) and (1, 23) apart; "12" and 12 too.
    text = "\x1f".join([purpose, *map(repr, parts)])
    return hashlib.blake2b(text.encode(), digest_size=num_bytes, person=b"dataporter").digest()


def key_as_int(purpose: str, *parts: int | str) -> int:
    """Derive a key as an unsigned 64-bit integer."""
    return int.from_bytes(derive_key(purpose, *parts), "little")


def mix(key: int, counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash each counter under a 64-bit key into 64 bits; shape is kept.

    Two passes of the splitmix64 finaliser with the key added before each: a bijection
    of the counter for a fixed key, so no two positions of an epoch share a value.
    """
    word = np.uint64(key)
    mixed = counters.astype(np.uint64)
    for _ in range(2):
        mixed += word
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def mix_one(key: int, counter: int) -> int:
    """Hash one counter as `mix` does: for a single number NumPy takes ten times as long.

    >>> mix_one(7, 3) == int(mix(7, np.array([3]))[0])
    True
    """
    mixed = counter
    for _ in range(2):
        mixed = (mixed + key) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    return mixed


def uniform(key: int, counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give each counter a float in the open interval (0, 1), never 0 and never 1."""
    # 53 random bits, moved to the middle of their cell, so that log() is always finite.
    cells = (mix(key, counters) >> np.uint64(11)).astype(np.float64)
    return np.minimum((cells + 0.5) * 2.0**-53, np.nextafter(1.0, 0.0))


def checked_seed(seed: object, name: str = "seed", *, optional: bool = False) -> int:
    """Return a valid seed or raise. With `optional`, the message allows None too."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        expected = "an int or None" if optional else "an int"
        msg = f"{name} must be {expected}, found {type(seed).__name__} {seed!r}."
        raise OptionTypeError(msg)
    if not 0 <= seed <= MAX_SEED:
        msg = f"{name} must be in [0, 2**64), found {seed}."
        raise OptionError(msg)
    return seed


def checked_epoch(epoch: object) -> int:
    """Return a valid epoch, or raise."""
    if isinstance(epoch, bool) or not isinstance(epoch, SupportsIndex):
        msg = f"epoch must be an int, found {type(epoch).__name__} {epoch!r}."
        raise OptionTypeError(msg)
    if operator.index(epoch) < 0:
        msg = f"epoch must be at least 0, found {epoch}."
        raise OptionError(msg)
    if operator.index(epoch) >= 2**63:
        msg = f"epoch must be below 2**63, found {epoch}."
        raise OptionError(msg)
    return operator.index(epoch)
