"""Datasets that loaders are compared on: typical kinds, with invented contents."""

from __future__ import annotations

import functools
import io
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info


@dataclass(frozen=True, slots=True)
class Workload:
    """A dataset, and the batches it is delivered in."""

    name: str
    make: Callable[[int], Any]  # of as many samples
    length: int  # of an epoch
    batch_size: int
    needs: str = "torch"  # a module that may be missing

    @property
    def title(self) -> str:
        """A description for tables."""
        return f"{self.name}, batches of {self.batch_size}"


class TokenWindows:
    """Windows of 256 tokens cut from one long array, as language models are trained on."""

    def __init__(self, windows: int, tokens: int = 2**24) -> None:
        self._tokens = np.random.default_rng(0).integers(0, 50_000, tokens, dtype=np.int32)
        self._windows = windows
        self._step = (tokens - 256) // windows  # windows overlap if there are many

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._step
        return torch.from_numpy(self._tokens[start : start + 256])


class FiveFields:
    """Dicts of five small fields, two of them cut from tensors at each reading."""

    def __init__(self, length: int) -> None:
        self._features = torch.randn(length, 16)
        self._mask = torch.ones(length, 16, dtype=torch.bool)

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "features": self._features[index],
            "mask": self._mask[index],
            "weight": index / 2,
            "id": index,
            "label": index % 10,
        }


class Images:
    """Ready 3x224x224 float images: nothing to do but to move them."""

    def __init__(self, length: int, kept: int = 64) -> None:
        self._images = torch.randn(kept, 3, 224, 224)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._images[index % len(self._images)]


class Decoded:
    """About a millisecond of NumPy work a sample: bytes to an augmented 3x224x224 image."""

    def __init__(self, length: int, kept: int = 64) -> None:
        rng = np.random.default_rng(0)
        self._encoded = rng.integers(0, 256, (kept, 256, 256, 3), dtype=np.uint8)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        encoded = self._encoded[index % len(self._encoded)]
        top, left = index % 32, index // 32 % 32
        image = encoded[top : top + 224, left : left + 224, :: -1 if index % 2 else 1]
        image = image.astype(np.float32) / 255
        mean, contrast = image.mean(), np.float32(0.8 + index % 5 / 10)
        image = np.clip((image - mean) * contrast + mean, 0, 1) ** np.float32(0.45)
        image = (image - np.float32(0.45)) / np.float32(0.225)
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


class Jpegs:
    """JPEG files of 256x256 in memory: decoded, cropped and flipped at random, normalised."""

    def __init__(self, length: int, kept: int = 64) -> None:
        self._files = [_jpeg(number) for number in range(kept)]
        self._length = length
        self._mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        self._deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        from PIL import Image  # noqa: PLC0415  may be missing

        image = Image.open(io.BytesIO(self._files[index % len(self._files)])).convert("RGB")
        # The draws of torchvision's RandomCrop and RandomHorizontalFlip.
        top, left = (int(torch.randint(0, 256 - 224 + 1, (1,))) for _ in range(2))
        image = image.crop((left, top, left + 224, top + 224))
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div_(255).sub_(self._mean).div_(self._deviation)


def _jpeg(number: int) -> bytes:
    """Encode waves, edges and a little noise: like a photograph, for an encoder."""
    from PIL import Image  # noqa: PLC0415  likewise

    rng = np.random.default_rng(number)
    y, x = np.mgrid[0:256, 0:256] / 256
    channels = []
    for _ in range(3):
        waves = sum(
            np.sin(2 * np.pi * (x * a + y * b) + c) / (1 + a + b)
            for a, b, c in rng.uniform(0, 12, (6, 3))
        )
        edges = sum((x * a + y * b > c) * 0.4 for a, b, c in rng.uniform(-1, 1, (4, 3)))
        channels.append(waves + edges + rng.normal(0, 0.03, (256, 256)))
    image = np.stack(channels, axis=-1)
    image = (image - image.min()) / (image.max() - image.min()) * 255
    file = io.BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


class Computed:
    """A fixed time of work a sample, half in NumPy and half in Python."""

    def __init__(self, length: int, milliseconds: float) -> None:
        self._length = length
        self._rows = np.random.default_rng(0).random((256, 512), dtype=np.float32)
        self._repeats = _repeats(milliseconds)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(_compute(self._rows[index % 256], self._repeats))


def _compute(row: np.ndarray[Any, Any], repeats: int) -> np.ndarray[Any, Any]:
    total = 0
    for _ in range(repeats):
        row = np.tanh(row + np.float32(0.1))
        for number in range(60):
            total += number & 3
    return row + np.float32(total)


@functools.cache
def _repeats(milliseconds: float) -> int:
    """Find how often the work must be repeated to take so long on this machine."""
    row = np.ones(512, np.float32)
    took = []
    for _ in range(30):
        start = time.perf_counter()
        _compute(row, 100)
        took.append(time.perf_counter() - start)
    return max(1, round(milliseconds / 1e3 / (min(took) / 100)))


class Skewed:
    """One sample in 64 takes 20 ms, as a large file among small ones does.

    It is every 64th that a process reads, not every 64th of the dataset: so each turn has as many.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._read = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        self._read += 1
        # Processes with successive numbers are not slow at the same time.
        slow = (self._read + 7 * os.getpid()) % 64 == 0
        time.sleep(0.02 if slow else 0.0001)
        return torch.zeros(16)


class Nothing:
    """A dataset of any length that costs nothing."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


class Rows(IterableDataset[dict[str, Any]]):
    """A stream of small dicts, shared among workers, with a state of `extra` bytes beside."""

    def __init__(self, length: int, extra: int = 0) -> None:
        self._features = torch.randn(4096, 16)
        self._length = length
        self._extra = np.zeros(extra, np.uint8)
        self._next = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        step, first = (1, 0) if info is None else (info.num_workers, info.id)
        for number in range(first + self._next * step, self._length, step):
            self._next += 1
            yield {"features": self._features[number % 4096], "id": number, "weight": number / 2}
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        if not len(self._extra):
            return {"next": self._next}
        self._extra[self._next % len(self._extra)] += 1
        return {"next": self._next, "extra": self._extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next, self._extra = state["next"], state.get("extra", self._extra)


def tensors(length: int) -> TensorDataset:
    """Make rows of 32 numbers with a label."""
    return TensorDataset(torch.randn(length, 32), torch.randint(0, 10, (length,)))


_LARGE_STATE = functools.partial(Rows, extra=2**20)
_COMPUTED = functools.partial(Computed, milliseconds=0.3)

# Epochs of a fraction of a second, which a turn repeats, except where samples cost much.
WITHOUT_WORKERS = [
    Workload("nothing to do", Nothing, 2**14, 1),
    Workload("nothing to do", Nothing, 2**16, 8),
    Workload("nothing to do", Nothing, 2**16, 64),
    Workload("nothing to do", Nothing, 2**17, 512),
    Workload("token windows (256 int32)", TokenWindows, 2**16, 64),
    Workload("dicts of five fields", FiveFields, 2**16, 128),
    Workload("images of 3x224x224 floats", Images, 2**12, 64),
    Workload("NumPy work of about 1 ms", Decoded, 2**12, 32),
    Workload("JPEG decoded and augmented", Jpegs, 2**12, 32, "PIL"),
    Workload("TensorDataset", tensors, 2**16, 256),
    Workload("stream of small dicts", Rows, 2**16, 64),
    Workload("stream with a state of 1 MB", _LARGE_STATE, 2**14, 64),
]

# Long epochs: the time between two epochs is measured by itself.
WITH_WORKERS = [
    Workload("nothing to do", Nothing, 2**21, 64),
    Workload("token windows (256 int32)", TokenWindows, 2**20, 64),
    Workload("dicts of five fields", FiveFields, 2**20, 128),
    Workload("images of 3x224x224 floats", Images, 2**16, 64),
    Workload("0.3 ms of work", _COMPUTED, 2**16, 64),
    Workload("NumPy work of about 1 ms", Decoded, 2**14, 32),
    Workload("JPEG decoded and augmented", Jpegs, 2**14, 32, "PIL"),
    Workload("one slow sample in 64", Skewed, 2**14, 8),
    Workload("stream of small dicts", Rows, 2**20, 64),
    Workload("stream with a state of 1 MB", _LARGE_STATE, 2**18, 64),
]
