"""What a batch holds, as digests that travel between processes, and the first difference.

A batch of any container is taken apart into leaves, each with the path to it. A leaf whose
first dimension is that of the samples has a digest for each sample. Digests are of bits: a
NaN equals itself, 0.0 is not -0.0. Where a leaf is small its values come along, to be shown.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from dataporter.containers import joined, parts_of

_SHOWN_BYTES = 2**14  # of a leaf whose values come along
_PLAIN = (str, bytes, bool, int, float, complex, type(None))


class Leaf(NamedTuple):
    """One value in a batch that is no container."""

    kind: str
    shape: tuple[int, ...]
    digests: tuple[bytes, ...]  # of each sample, or one of all
    values: tuple[str, ...]  # of each element, or none where there are too many


Contents: TypeAlias = dict[str, Leaf]


class Difference(NamedTuple):
    """Where two batches differ first, and how."""

    path: str
    sample: int | None  # number in the batch, where it can be told
    words: str


def contents_of(batch: Any, samples: int | None = None) -> Contents:
    """Take a batch of so many samples apart.

    >>> held = contents_of({"x": torch.zeros(2, 3), "names": ["a", "b"]}, samples=2)
    >>> [(path, leaf.kind, len(leaf.digests)) for path, leaf in held.items()]
    [('x', 'torch.float32', 2), ('names', 'list of str', 2)]
    """
    return dict(_leaves(batch, samples, ""))


def _leaves(part: Any, samples: int | None, path: str) -> Iterator[tuple[str, Leaf]]:
    if type(part) in (list, tuple) and len(part) == samples and isinstance(part[0], _PLAIN):
        yield path, _listed(part)
        return
    inner = None if isinstance(part, _PLAIN) else parts_of(part)
    if inner is None:
        yield path, _leaf(part, samples)
        return
    number = 0
    for _, step, below in inner:
        number += 1
        yield from _leaves(below, samples, joined(path, step))
    if number == 0:
        yield path, Leaf(f"empty {type(part).__name__}", (), (b"",), ())


def _listed(part: Any) -> Leaf:
    """A leaf of one plain value for each sample."""
    digests = tuple(digest(value) for value in part)
    return Leaf(f"list of {type(part[0]).__name__}", (len(part),), digests, _shown(part))


def _leaf(part: Any, samples: int | None) -> Leaf:
    if isinstance(part, torch.Tensor) and part.layout is torch.strided and not part.is_quantized:
        whole = part.detach().cpu().contiguous().resolve_conj().resolve_neg()
        data = bytes(whole.reshape(-1).view(torch.uint8).numpy())
        values = _shown(whole.reshape(-1).tolist(), part.itemsize) if _is_small(data) else ()
        kind = str(part.dtype)
    elif isinstance(part, np.ndarray) and not part.dtype.hasobject:
        data = part.tobytes()
        values = _shown(part.reshape(-1).tolist(), part.itemsize) if _is_small(data) else ()
        kind = f"NumPy {part.dtype}"
    else:
        return Leaf(type(part).__name__, (), (digest(part),), (reprlib.repr(part),))
    shape = tuple(part.shape)
    pieces = samples if samples and shape and shape[0] == samples else 1
    size = len(data) // pieces
    digests = tuple(_hash(data[n * size : n * size + size]) for n in range(pieces))
    return Leaf(kind, shape, digests, values)


def _is_small(data: bytes) -> bool:
    return len(data) <= _SHOWN_BYTES


def _shown(values: Any, size: int = 8) -> tuple[str, ...]:
    """Values in words; floats of `size` bytes with as many digits as tell them apart."""
    digits = 17 if size > 4 else 9  # noqa: PLR2004  bytes of a float32
    return tuple(
        f"{value:.{digits}g}" if isinstance(value, float) else reprlib.repr(value)
        for value in values
    )


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def digest(value: Any) -> bytes:
    """Hash any object by what it holds, not by where it lies or in which order it was pickled.

    >>> digest({"a": [1, {2, 3}]}) == digest({"a": [1, {3, 2}]})
    True
    >>> digest(1) == digest(True)
    False
    """
    hasher = hashlib.blake2b(digest_size=8)
    _feed(hasher, value, ())
    return hasher.digest()


def _feed(hasher: Any, value: Any, above: tuple[int, ...]) -> None:
    hasher.update(f"{type(value).__qualname__}(".encode())
    if isinstance(value, _PLAIN):
        hasher.update(value if isinstance(value, bytes) else repr(value).encode(errors="replace"))
    elif isinstance(value, torch.Tensor) or (
        isinstance(value, np.ndarray) and not value.dtype.hasobject
    ):
        leaf = _leaf(value, None)
        hasher.update(f"{leaf.kind}{leaf.shape}".encode() + leaf.digests[0])
    elif callable(value) and hasattr(value, "__qualname__"):
        hasher.update(f"{value.__module__}.{value.__qualname__}".encode())
    elif id(value) in above:
        hasher.update(b"again")
    else:
        for part in _parts(value):
            _feed(hasher, part, (*above, id(value)))
    hasher.update(b")")


def _parts(value: Any) -> Iterator[Any]:
    """What an object is made of, as far as it says."""
    if isinstance(value, set | frozenset):
        yield from sorted(digest(each) for each in value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield key
            yield each
    elif isinstance(value, list | tuple | np.ndarray):
        yield from value
    else:
        # As pickle would, but part by part: a pickle depends on which parts are one object.
        try:
            made = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001  it cannot be pickled, so its type must do
            return
        for each in (made,) if isinstance(made, str) else made:
            yield list(each) if isinstance(each, Iterator) else each


def difference(expected: Contents, found: Contents) -> Difference | None:
    """Say where two batches differ first; None where they are equal bit by bit.

    >>> one, other = (contents_of({"x": torch.tensor([1, n])}, samples=2) for n in (2, 3))
    >>> difference(one, other)
    Difference(path='x', sample=1, words='expected 2, found 3')
    >>> difference(one, one) is None
    True
    """
    for path in [*expected, *(path for path in found if path not in expected)]:
        one, other = expected.get(path), found.get(path)
        if one is not None and other is not None and one[:3] == other[:3]:
            continue  # values are only to be shown: those of an object may have its address
        if one is None or other is None:
            missing, there = ("found", one) if other is None else ("expected", other)
            kind = "" if there is None else f" ({there.kind})"
            return Difference(path, None, f"was not {missing} there{kind}")
        if (one.kind, one.shape) != (other.kind, other.shape):
            words = f"expected {_described(one)}, found {_described(other)}"
            return Difference(path, None, words)
        return _differing(path, one, other)
    return None


def _described(leaf: Leaf) -> str:
    if leaf.shape:
        return f"{leaf.kind} of shape {list(leaf.shape)}"
    return f"{leaf.kind} {leaf.values[0]}" if leaf.values else leaf.kind


def _differing(path: str, one: Leaf, other: Leaf) -> Difference:
    pairs = zip(one.digests, other.digests, strict=True)
    sample = next((n for n, (mine, its) in enumerate(pairs) if mine != its), 0)
    words = "the bits differ"
    each = zip(one.values, other.values, strict=False)
    for number, (mine, its) in enumerate(each):
        if mine != its:
            place, size = "", max(len(one.values) // max(len(one.digests), 1), 1)
            if size > 1:
                place = f" at element {number % size}"
            words = f"expected {mine}, found {its}{place}"
            break
    return Difference(path, sample if len(one.digests) > 1 else None, words)
