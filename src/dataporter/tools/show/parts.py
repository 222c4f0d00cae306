"""The parts of a batch, described: shapes, dtypes, ranges, values, text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dataporter.fetch.containers import is_plain_list, joined, parts_of
from dataporter.layout import counted

_SHOWN = 8  # values of a small part
_DEEPEST = 20  # containers in containers
_MOST = 200  # parts
_TEXT = 300  # letters of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a batch that is no container."""

    path: str
    kind: str  # its dtype or type
    shape: tuple[int, ...] | None = None
    least: float | None = None
    most: float | None = None
    mean: float | None = None
    not_finite: int = 0  # NaN and infinity
    values: tuple[str, ...] = ()  # the first ones
    texts: tuple[str, ...] = ()  # shortened, one for each sample

    def words(self) -> str:
        """The part in one line, without its texts."""
        said = [self.kind]
        if self.shape is not None:
            said[0] += f" [{', '.join(map(str, self.shape))}]"
        if self.least is not None and self.most is not None:
            mean = "" if self.mean is None else f", mean {self.mean:.4g}"
            said.append(f"{self.least:.4g} to {self.most:.4g}{mean}")
        if self.not_finite:
            said.append(f"{counted(self.not_finite, 'value')} not finite (NaN or infinity)")
        if self.values:
            count = math.prod(self.shape or (len(self.values),))
            said.append(" ".join(self.values) + (" ..." if count > len(self.values) else ""))
        return "; ".join(said)


def parts_in(batch: Any) -> list[tuple[Any, Part]]:
    """List the parts of a batch, each with its description.

    >>> [(part.path, part.words()) for _, part in parts_in({"x": torch.tensor([1.5, 2.5])})]
    [('x', 'torch.float32 [2]; 1.5 to 2.5, mean 2; 1.5 2.5')]
    """
    found = []
    for path, part in _leaves(batch, ""):
        found.append((part, described(path or "batch", part)))
        if len(found) == _MOST:
            break
    return found


def _leaves(part: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    inner = None if depth == _DEEPEST or is_plain_list(part) else parts_of(part)
    if inner is None:
        yield path, part
        return
    for _, step, each in inner:
        yield from _leaves(each, joined(path, step), depth + 1)


def described(path: str, part: Any) -> Part:
    """Describe a part that is no container."""
    if isinstance(part, torch.Tensor):
        return _of_numbers(path, f"{part.dtype}", tuple(part.shape), as_array(part))
    if isinstance(part, np.ndarray | np.generic):
        kind = f"numpy {part.dtype}"
        return _of_numbers(path, kind, tuple(part.shape), np.asarray(part))
    if isinstance(part, str | bytes):
        return Part(path=path, kind=type(part).__name__, texts=(_shortened(part),))
    if is_plain_list(part):
        return _of_list(path, part)
    return Part(path=path, kind=type(part).__name__, values=(_shortened(repr(part)),))


def _of_list(path: str, part: list[Any]) -> Part:
    kinds = sorted({type(value).__name__ for value in part})
    kind = f"list of {' and '.join(kinds)}" if kinds else "empty list"
    if all(isinstance(value, str | bytes) for value in part):
        texts = tuple(_shortened(value) for value in part)
        return Part(path=path, kind=kind, shape=(len(part),), texts=texts)
    values = tuple(map(str, part[:_SHOWN]))
    return Part(path=path, kind=kind, shape=(len(part),), values=values)


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any] | None:
    """Return the values of a tensor; None if they are not laid out as an array."""
    try:
        tensor = tensor.detach().cpu()
        # NumPy lacks bfloat16 and the float8s.
        has_dtype = not tensor.is_floating_point() or tensor.dtype in _FLOATS
        return (tensor if has_dtype else tensor.float()).numpy()
    except (RuntimeError, TypeError):  # sparse, nested, quantised
        return None


_FLOATS = {torch.float16, torch.float32, torch.float64}


def _of_numbers(
    path: str, kind: str, shape: tuple[int, ...], array: np.ndarray[Any, Any] | None
) -> Part:
    if array is None or array.dtype.kind not in "biuf" or array.size == 0:
        values = () if array is None else tuple(_shortened(str(v)) for v in array.ravel()[:_SHOWN])
        return Part(path=path, kind=kind, shape=shape, values=values)
    flat = array.ravel()
    finite = flat[np.isfinite(flat)]
    is_bool = array.dtype.kind == "b"
    shown = 0 if array.dtype.kind == "f" and array.ndim > 1 else _SHOWN  # they say nothing
    return Part(
        path=path,
        kind=kind,
        shape=shape,
        least=float(finite.min()) if finite.size else None,
        most=float(finite.max()) if finite.size else None,
        mean=float(finite.mean(dtype=np.float64)) if finite.size else None,
        not_finite=int(flat.size - finite.size),
        values=tuple(str(bool(v)) if is_bool else f"{v:.6g}" for v in flat[:shown]),
    )


def _shortened(text: str | bytes) -> str:
    said = text if isinstance(text, str) else repr(text)
    return said if len(said) <= _TEXT else f"{said[: _TEXT - 4]} ..."
