"""The parts of a batch, described: shapes, dtypes, ranges, values, text, images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.fetch.containers import is_plain_list, joined, parts_of
from dataporter.layout import counted

_SHOWN = 8  # values of a small part
_DEEPEST = 20  # containers in containers
_MOST = 200  # parts
_TEXT = 300  # letters of a text
_MOST_IMAGES = 64  # images of a part, and parts that are images
_SMALLEST = 4  # pixels of a side: less is no image
_LARGEST = 256  # pixels of a side that travel
_CHANNELS = (1, 3, 4)
_GREY, _COLOURED = 3, 4  # dimensions of images without and with channels


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """Images of one part of a batch, ready to be drawn."""

    path: str
    pixels: list[NDArray[np.uint8]]  # each (height, width) or (height, width, channels)
    scale: str  # how values became brightness


def images_in(parts: list[tuple[Any, Part]], samples: int) -> list[Images]:
    """Find the images of a batch of so many samples."""
    found = [_images_of(part, described.path, samples) for part, described in parts]
    return [images for images in found if images is not None][:_MOST_IMAGES]


def _images_of(part: Any, path: str, samples: int) -> Images | None:
    array = _as_pixels(part, samples)
    if array is None or not len(array) or min(array.shape[1:3]) < _SMALLEST:
        return None
    if not np.isfinite(array).any():
        return None
    step = -(-max(array.shape[1:3]) // _LARGEST)
    scaled, scale = _brightness(array[:_MOST_IMAGES, ::step, ::step])
    return Images(path=path, pixels=list(scaled), scale=scale)


def _as_pixels(part: Any, samples: int) -> NDArray[Any] | None:
    """Return images as (count, height, width[, channels]); None for anything else."""
    is_image = hasattr(part, "__array_interface__") and not isinstance(
        part, np.ndarray | np.generic
    )
    array = as_array(part) if isinstance(part, torch.Tensor) else part
    if is_image:  # of Pillow
        array = np.asarray(part)[None]
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uf":
        return None
    if array.ndim == _GREY and array.shape[0] != samples:
        if array.shape[0] not in _CHANNELS and array.shape[2] not in _CHANNELS:
            return None
        array = array[None]  # a single image
    if array.ndim == _GREY:
        return array
    if array.ndim != _COLOURED:
        return None
    if array.shape[1] in _CHANNELS:
        array = np.moveaxis(array, 1, 3)
    elif array.shape[3] not in _CHANNELS:
        return None
    return array[..., 0] if array.shape[3] == 1 else array


def _brightness(images: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """Make bytes of pixels, and say which values are black and white."""
    if images.dtype == np.uint8:
        return images, "0 to 255"
    finite = images[np.isfinite(images)]
    least, most = float(finite.min()), float(finite.max())
    for low, high in ((0.0, 1.0), (0.0, 255.0)):
        if low <= least and most <= high:
            least, most = low, high
            break
    span = (most - least) or 1.0
    whole = np.nan_to_num(images.astype(np.float64), nan=least, posinf=most, neginf=least)
    scaled = np.clip((whole - least) / span, 0, 1) * 255
    return scaled.round().astype(np.uint8), f"black {least:.4g}, white {most:.4g}"
