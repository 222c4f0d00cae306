"""Batches of images: one float32 tensor of B x C x H x W from images of any kind.

A tensor is C x H x W. An array of uint8 is H x W x C and an array of floats is C x H x W, unless
its shape shows the opposite. PIL images are recognised by their attributes, so PIL need not be
installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.errors import CollationError, OptionError, OptionTypeError
from dataporter.fetch import draws_nothing
from dataporter.fetch.rows import check_rows, collate_columns, columns_of, take_column


class Constants(NamedTuple):
    """Mean and standard deviation of a dataset's channels, for pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


CONSTANTS = {
    "imagenet": Constants((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Constants((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}

# The value of white for each integer dtype. Pixels are divided by it to lie in [0, 1].
_WHITE = {"uint8": 255.0, "uint16": 65535.0, "bool": 1.0}
# PIL modes whose pixels are read as they are, and modes that are converted to grey. Other modes
# are converted to RGB.
_PLAIN_MODES = ("L", "RGB", "F", "I", "I;16", "I;16L", "I;16B", "I;16N")
_GREY_MODES = {"1": "L", "LA": "L", "La": "L"}

_IMAGE_NAMES = ("pixel_values", "image", "img")
_LABEL_NAMES = ("labels", "label")
_USUAL_CHANNELS = (1, 3, 4)
_RGB = 3

# Advice that applies to a collator made by the user and to that of a data module.
_COLOURED = (
    "Use collate_fn=VisionDataCollator(channels=3), which turns grey images into colour images."
)
_NORMALISED = (
    "Use collate_fn=VisionDataCollator(mean=[...], std=[...]) with one number for each channel."
)


class VisionDataCollator:
    """Makes `pixel_values` and, if the rows have them, `labels`.

    A row is a dict with an image as `pixel_values`, `image` or `img` and optionally `labels` or
    `label`; or an (image, label) pair, also as a list; or an image. Images are tensors, arrays or
    PIL images. Integers are scaled to [0, 1]; floats should already be in [0, 1]. Other columns
    are kept.

    >>> white = np.full((2, 2, 3), 255, dtype=np.uint8)
    >>> collator = VisionDataCollator(mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5])
    >>> batch = collator([{"image": white, "label": 3}])
    >>> batch["pixel_values"].shape, batch["pixel_values"].max(), batch["labels"]
    (torch.Size([1, 3, 2, 2]), tensor(1.), tensor([3]))

    `mean` and `std` refer to pixels in [0, 1] and have one number for each channel. Their
    defaults are those of `constants`, "imagenet" or "cifar10", averaged for grey images. Images
    keep their channels, and grey images have one. `channels=3` turns grey images into colour
    images, for datasets that have both. PIL images lose their transparency.
    """

    def __init__(
        self,
        normalize: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        *,
        constants: str = "imagenet",
        channels: int | None = None,
    ) -> None:
        if constants not in CONSTANTS:
            known = ", ".join(map(repr, CONSTANTS))
            msg = f"constants must be one of {known}, found {constants!r}."
            raise OptionError(msg)
        if (mean is None) != (std is None):
            given, lacking = ("mean", "std") if std is None else ("std", "mean")
            msg = f"{given} was given without {lacking}. Pass both or neither."
            raise OptionError(msg)
        if channels not in (None, 1, _RGB):
            msg = f"channels must be 1, 3 or None, found {channels!r}."
            raise OptionError(msg)
        self.normalize = normalize
        self.constants = CONSTANTS[constants]
        self.own_constants = None if mean is None or std is None else _checked(mean, std)
        self.channels = channels
        own = self.own_constants
        if normalize and own and channels not in (None, len(own.mean)):
            msg = (
                f"channels={channels} conflicts with a mean of {len(own.mean)} numbers. Pass "
                f"{channels} numbers, or remove channels=."
            )
            raise OptionError(msg)

    @draws_nothing
    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        check_rows(rows)
        columns = _columns(rows)
        images = take_column(columns, _IMAGE_NAMES)
        if images is None:
            found = ", ".join(map(repr, columns)) or "(none)"
            msg = (
                f"the rows have no 'pixel_values', 'image' or 'img', found the columns {found}. "
                "Rename the column of images in the dataset."
            )
            raise CollationError(msg)
        labels = take_column(columns, _LABEL_NAMES)
        if labels is not None:
            columns = {"labels": labels, **columns}
        return {"pixel_values": self._pixels(images), **collate_columns(columns)}

    def _pixels(self, images: Sequence[Any]) -> torch.Tensor:
        arrays = [self._channels_first(image, number) for number, image in enumerate(images)]
        _check_shapes(arrays)
        white = _WHITE.get(arrays[0].dtype.name, 1.0)
        if any(array.dtype != arrays[0].dtype for array in arrays):
            arrays = [_scaled(array) for array in arrays]
            white = 1.0
        stacked = torch.from_numpy(np.stack(arrays))
        pixels = stacked.to(torch.float32, memory_format=torch.contiguous_format)
        if not self.normalize:
            return pixels if white == 1.0 else pixels.div_(white)
        mean, std = self._constants_for(pixels.shape[1])
        # Scale and normalise in one step, since each pass over the batch takes time.
        return pixels.sub_(mean * white).div_(std * white)

    def _channels_first(self, image: Any, number: int) -> NDArray[Any]:
        array = _as_array(image, number)
        if array.ndim == 2:  # noqa: PLR2004  height and width
            array = array[None]
        elif self._has_channels_last(array, number, is_tensor=isinstance(image, torch.Tensor)):
            array = np.moveaxis(array, -1, 0)
        if self.channels == _RGB and len(array) == 1:
            array = np.broadcast_to(array, (_RGB, *array.shape[1:]))
        if self.channels is not None and len(array) != self.channels:
            msg = (
                f"image {number} has {len(array)} channels, expected {self.channels}. "
                "Convert it in the dataset."
            )
            raise CollationError(msg)
        return array

    def _has_channels_last(self, array: NDArray[Any], number: int, *, is_tensor: bool) -> bool:
        counts = set(_USUAL_CHANNELS)
        if self.own_constants is not None:
            counts.add(len(self.own_constants.mean))
        first, last = array.shape[0] in counts, array.shape[-1] in counts
        if not first and not last:
            msg = (
                f"image {number} has shape {array.shape}. Its first or last dimension must be the "
                f"number of channels ({', '.join(map(str, sorted(counts)))}). For another number "
                "use collate_fn=VisionDataCollator(mean=[...], std=[...]) with one number for each "
                "channel."
            )
            raise CollationError(msg)
        if first and last:
            return not is_tensor and array.dtype.name in _WHITE
        return last

    def _constants_for(self, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        constants = self.own_constants or self.constants
        if channels == 1 and self.own_constants is None:
            constants = Constants(*((sum(numbers) / len(numbers),) for numbers in constants))
        if len(constants.mean) != channels:
            remedy = _COLOURED if channels == 1 and len(constants.mean) == _RGB else _NORMALISED
            msg = (
                f"the images have {channels} channels, but mean and std have "
                f"{len(constants.mean)}. {remedy}"
            )
            raise CollationError(msg)
        mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in constants)
        return mean, std

    def __repr__(self) -> str:
        constants = (self.own_constants or self.constants) if self.normalize else None
        return f"{type(self).__name__}(constants={constants}, channels={self.channels})"


VisionCollator = VisionDataCollator


def _columns(rows: Sequence[Any]) -> dict[str, list[Any]]:
    if isinstance(rows[0], Mapping):
        return columns_of(rows)
    if not _is_pair(rows[0]):
        return {"image": list(rows)}
    names = ("image", "label")
    for number, row in enumerate(rows):
        if not _is_pair(row) or len(row) != len(rows[0]) or len(row) not in (1, 2):
            msg = f"row {number}: expected an (image, label) pair like row 0, found {_brief(row)}."
            raise CollationError(msg)
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=False))


def _is_pair(row: Any) -> bool:
    """Return True for a tuple, and for a list that begins with an image.

    Any other list is itself an image, as nested lists of numbers.
    """
    if not isinstance(row, list) or not row:
        return isinstance(row, tuple)
    return getattr(row[0], "ndim", 0) > 1 or hasattr(row[0], "convert")


def _as_array(image: Any, number: int) -> NDArray[Any]:
    """Return the pixels of an image, with its own dtype and layout."""
    if isinstance(image, torch.Tensor):
        is_known = image.dtype is not torch.bfloat16
        array = (image if is_known else image.float()).detach().cpu().numpy()
    elif hasattr(image, "mode") and hasattr(image, "convert"):
        if image.mode not in _PLAIN_MODES:
            image = image.convert(_GREY_MODES.get(image.mode, "RGB"))
        array = np.asarray(image)
    elif image is None or isinstance(image, str | bytes | dict):
        msg = f"image {number}: expected a tensor, an array or a PIL image, found {_brief(image)}."
        raise CollationError(msg)
    else:
        try:
            array = np.asarray(image)
        except ValueError as error:  # lists of unequal lengths
            msg = (
                f"image {number}: expected a tensor, an array or a PIL image, found "
                f"{_brief(image)} that is no image: {error}"
            )
            raise CollationError(msg) from error
    if array.ndim not in (2, 3) or 0 in array.shape:
        msg = (
            f"image {number} must have height, width and optionally channels, found shape "
            f"{array.shape}."
        )
        raise CollationError(msg)
    if array.dtype.name not in _WHITE and array.dtype.kind != "f":
        msg = (
            f"image {number} has dtype {array.dtype}, whose value range is unknown. Convert it in "
            "the dataset to uint8 in [0, 255] or floats in [0, 1]."
        )
        raise CollationError(msg)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _scaled(array: NDArray[Any]) -> NDArray[np.float32]:
    return array.astype(np.float32) / np.float32(_WHITE.get(array.dtype.name, 1.0))


def _check_shapes(arrays: Sequence[NDArray[Any]]) -> None:
    first = arrays[0].shape
    for number, array in enumerate(arrays):
        if array.shape != first:
            remedy = "Resize or crop them in the dataset."
            if array.shape[1:] == first[1:]:
                is_grey_beside_colour = {array.shape[0], first[0]} == {1, _RGB}
                remedy = _COLOURED if is_grey_beside_colour else "Convert them in the dataset."
            msg = f"image {number} has shape {array.shape}, image 0 has {first}. {remedy}"
            raise CollationError(msg)


def _checked(mean: Sequence[float], std: Sequence[float]) -> Constants:
    try:
        constants = Constants(tuple(map(float, mean)), tuple(map(float, std)))
    except (TypeError, ValueError) as error:
        msg = f"mean and std must be sequences of numbers, found {mean!r} and {std!r}."
        raise OptionTypeError(msg) from error
    if not constants.mean or len(constants.mean) != len(constants.std):
        msg = (
            f"mean and std must have one number for each channel, found {len(constants.mean)} and "
            f"{len(constants.std)}."
        )
        raise OptionError(msg)
    if not np.isfinite([*constants.mean, *constants.std]).all() or min(constants.std) <= 0:
        msg = f"mean and std must be finite and std above 0, found mean {mean} and std {std}."
        raise OptionError(msg)
    return constants


def _brief(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return f"{type(value).__name__}{size}"
