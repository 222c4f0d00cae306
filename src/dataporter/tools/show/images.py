"""Images in a batch: which part holds them, and as what they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.tools.show.parts import Part, as_array

_MOST = 64  # images of a part, and parts that are images
_SMALLEST = 4  # pixels of a side: less is no image
_LARGEST = 256  # pixels of a side that travel
_CHANNELS = (1, 3, 4)
_GREY, _COLOURED = 3, 4  # dimensions of images without and with channels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """Images of one part of a batch, ready to be drawn."""

    path: str
    pixels: list[NDArray[np.uint8]]  # each (height, width) or (height, width, channels)
    scale: str  # how values became brightness


def images_in(parts: list[tuple[Any, Part]], samples: int) -> list[Images]:
    """Find the images of a batch of so many samples."""
    found = [_images_of(part, described.path, samples) for part, described in parts]
    return [images for images in found if images is not None][:_MOST]


def _images_of(part: Any, path: str, samples: int) -> Images | None:
    array = _as_pixels(part, samples)
    if array is None or not len(array) or min(array.shape[1:3]) < _SMALLEST:
        return None
    if not np.isfinite(array).any():
        return None
    shown = np.stack([_smaller(image) for image in array[:_MOST]])
    scaled, scale = _brightness(shown)
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


def _smaller(image: NDArray[Any]) -> NDArray[Any]:
    step = -(-max(image.shape[:2]) // _LARGEST)
    return image[::step, ::step]


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
