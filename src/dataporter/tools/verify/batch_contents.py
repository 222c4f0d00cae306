"""The contents of a batch, as digests that travel between processes, and their differences.

A batch of any container is taken apart into leaves, each with its path. A leaf whose first
dimension is the number of samples has a digest for each sample. Digests compare bits: a NaN
equals itself, 0.0 is not -0.0. The values of a small leaf travel with it, to be shown.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from dataporter.errors import FactoryError
from dataporter.fetch.containers import joined, parts_of

_SHOWN_BYTES = 2**14  # of a leaf whose values travel with it
_DEEPEST = 50  # containers in containers; all that is deeper has one digest
_PLAIN = (str, bytes, bool, int, float, complex, type(None))


class Leaf(NamedTuple):
    """A value in a batch that is no container."""

    kind: str
    shape: tuple[int, ...]
    digests: tuple[bytes, ...]  # one for each sample, or a single one
    values: tuple[str, ...]  # of each element; empty if there are too many


Contents: TypeAlias = dict[str, Leaf]


class Difference(NamedTuple):
    """The first place where two batches differ."""

    path: str
    sample: int | None  # its number in the batch, if known
    message: str


def contents_of(batch: Any, samples: int | None = None) -> Contents:
    """Take a batch of `samples` samples apart.

    >>> held = contents_of({"x": torch.zeros(2, 3), "names": ["a", "b"]}, samples=2)
    >>> [(path, leaf.kind, len(leaf.digests)) for path, leaf in held.items()]
    [('x', 'torch.float32', 2), ('names', 'list of str', 2)]
    """
    return dict(_leaves(batch, samples, ""))


def _leaves(
    part: Any, samples: int | None, path: str, above: tuple[int, ...] = ()
) -> Iterator[tuple[str, Leaf]]:
    if type(part) in (list, tuple) and len(part) == samples and isinstance(part[0], _PLAIN):
        yield path, _listed(part)
        return
    inner = None if len(above) == _DEEPEST or id(part) in above else _inside(part)
    if inner is None:
        yield path, _leaf(part, samples)
        return
    # The blocks of a tensor are not samples, even if there are as many.
    below = None if isinstance(part, torch.Tensor) else samples
    is_empty = True
    for step, each in inner:
        is_empty = False
        yield from _leaves(each, below, joined(path, step), (*above, id(part)))
    if is_empty:
        yield path, Leaf(f"empty {type(part).__name__}", (), (b"",), ())


def _inside(part: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the parts of a container, or of a tensor in several blocks; None for a leaf."""
    if isinstance(part, _PLAIN):
        return None
    if isinstance(part, torch.Tensor):
        return _blocks(part)
    inner = parts_of(part)
    return None if inner is None else ((step, each) for _, step, each in inner)


def _blocks(tensor: torch.Tensor) -> list[tuple[str, Any]] | None:
    """Return the blocks of a sparse, nested or quantised tensor; None for any other."""
    tensor = tensor.detach()
    if tensor.is_nested:
        return [(f"[{number}]", each) for number, each in enumerate(tensor.unbind())]
    if tensor.is_quantized:
        is_whole = tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        names: tuple[str, ...] = _QUANTISED if is_whole else _QUANTISED_BY_CHANNEL
    elif tensor.layout in _SPARSE:
        names = _SPARSE[tensor.layout]
        tensor = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
    else:
        return None
    blocks = [(name, getattr(tensor, name)()) for name in names]
    return [("shape", tuple(tensor.shape)), *blocks]


_QUANTISED = ("int_repr", "q_scale", "q_zero_point")
_QUANTISED_BY_CHANNEL = (
    *("int_repr", "q_per_channel_axis", "q_per_channel_scales", "q_per_channel_zero_points"),
)
_SPARSE = {
    torch.sparse_coo: ("indices", "values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _listed(part: Any) -> Leaf:
    """Make a leaf of one plain value for each sample."""
    digests = tuple(digest(value) for value in part)
    return Leaf(f"list of {type(part[0]).__name__}", (len(part),), digests, _shown(part))


def _leaf(part: Any, samples: int | None) -> Leaf:
    if isinstance(part, torch.Tensor) and _blocks(part) is None:
        flat, data = _read(part)
        values = _shown(flat.tolist(), part.itemsize) if _is_small(data) else ()
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


def _read(tensor: torch.Tensor) -> tuple[torch.Tensor, bytes]:
    """Return all elements of a tensor in a row, and their bits."""
    if tensor.is_meta:
        return torch.empty(0), b""  # it has a shape and nothing else
    whole = tensor.detach().to_dense() if tensor.is_mkldnn else tensor.detach()
    try:
        flat = whole.cpu().contiguous().resolve_conj().resolve_neg().reshape(-1)
        return flat, bytes(flat.view(torch.uint8).numpy())
    except (RuntimeError, TypeError) as error:
        msg = (
            f"a batch has a {type(tensor).__name__} of layout {tensor.layout} whose bits cannot be "
            f"read ({type(error).__name__}: {error}). Deliver the tensors that it consists of."
        )
        raise FactoryError(msg) from error


def _is_small(data: bytes) -> bool:
    return len(data) <= _SHOWN_BYTES


def _shown(values: Any, size: int = 8) -> tuple[str, ...]:
    """Write values; floats of `size` bytes with enough digits to tell them apart."""
    digits = 17 if size > 4 else 9  # noqa: PLR2004  bytes of a float32
    return tuple(
        f"{value:.{digits}g}" if isinstance(value, float) else reprlib.repr(value)
        for value in values
    )


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def digest(value: Any) -> bytes:
    """Hash any object by its contents, not by its address or the order of its sets.

    >>> digest({"a": [1, {2, 3}]}) == digest({"a": [1, {3, 2}]})
    True
    >>> digest(1) == digest(True)
    False
    """
    outermost = _Opened(None, iter((value,)))
    opened = [outermost]  # from the outside in; Python's own stack would be too small
    inside = set[int]()
    while True:
        last = opened[-1]
        part = next(last.parts, _END)
        if part is _END:
            if last is outermost:
                return last.digest()
            opened.pop()
            inside.remove(id(last.value))
            opened[-1].add(last.value, last.digest())
        elif (plain := _without_parts(part)) is not None:
            last.add(part, plain)
        elif id(part) in inside:
            last.add(part, b"again")
        else:
            inside.add(id(part))
            opened.append(_Opened(part, _parts(part)))


_END = object()


class _Opened:
    """An object whose parts are being hashed."""

    def __init__(self, value: Any, parts: Iterator[Any]) -> None:
        self.value = value
        self.parts = parts
        self._digests: list[bytes] = []

    def add(self, part: Any, digest: bytes) -> None:
        """Add the digest of the next part."""
        kind = type(part).__qualname__.encode()
        self._digests.append(b"%b(%d)%b" % (kind, len(digest), digest))

    def digest(self) -> bytes:
        is_set = isinstance(self.value, set | frozenset)
        return _hash(b"".join(sorted(self._digests) if is_set else self._digests))


def _without_parts(value: Any) -> bytes | None:
    """Return the bytes of an object without parts; None for one with parts."""
    if isinstance(value, _PLAIN):
        return value if isinstance(value, bytes) else repr(value).encode(errors="replace")
    if isinstance(value, torch.Tensor | np.ndarray):
        if _inside(value) is not None or (isinstance(value, np.ndarray) and value.dtype.hasobject):
            return None
        leaf = _leaf(value, None)
        return f"{leaf.kind}{leaf.shape}".encode() + leaf.digests[0]
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}".encode()
    return None


def _parts(value: Any) -> Iterator[Any]:
    """Yield the parts of an object, as far as it shows them."""
    if isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, dict | Mapping):
        for key, each in value.items():
            yield key
            yield each
    elif isinstance(value, np.ndarray):
        yield value.shape
        yield from value.flat
    elif isinstance(value, torch.Tensor):
        for _, block in _blocks(value) or ():
            yield block
    else:
        # As pickle would, but part by part: a pickle depends on which parts are one object.
        try:
            made = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001  it cannot be pickled, so only its type counts
            return
        for each in (made,) if isinstance(made, str) else made:
            yield list(each) if isinstance(each, Iterator) else each


def difference(expected: Contents, found: Contents) -> Difference | None:
    """Find the first difference between two batches; None if all bits are equal.

    >>> one, other = (contents_of({"x": torch.tensor([1, n])}, samples=2) for n in (2, 3))
    >>> difference(one, other)
    Difference(path='x', sample=1, message='expected 2, found 3')
    >>> difference(one, one) is None
    True
    """
    for path in [*expected, *(path for path in found if path not in expected)]:
        one, other = expected.get(path), found.get(path)
        if one is not None and other is not None and one[:3] == other[:3]:
            continue  # values are only shown: those of an object may have its address
        if one is None or other is None:
            missing, there = ("found", one) if other is None else ("expected", other)
            kind = "" if there is None else f" ({there.kind})"
            return Difference(path, None, f"was not {missing} there{kind}")
        if (one.kind, one.shape) != (other.kind, other.shape):
            message = f"expected {_described(one)}, found {_described(other)}"
            return Difference(path, None, message)
        return _differing(path, one, other)
    return None


def _described(leaf: Leaf) -> str:
    if leaf.shape:
        return f"{leaf.kind} of shape {list(leaf.shape)}"
    return f"{leaf.kind} {leaf.values[0]}" if leaf.values else leaf.kind


def _differing(path: str, one: Leaf, other: Leaf) -> Difference:
    pairs = zip(one.digests, other.digests, strict=True)
    sample = next((n for n, (mine, its) in enumerate(pairs) if mine != its), 0)
    message = "the bits differ"
    each = zip(one.values, other.values, strict=False)
    for number, (mine, its) in enumerate(each):
        if mine != its:
            place, size = "", max(len(one.values) // max(len(one.digests), 1), 1)
            if size > 1:
                place = f" at element {number % size}"
            message = f"expected {mine}, found {its}{place}"
            break
    return Difference(path, sample if len(one.digests) > 1 else None, message)
