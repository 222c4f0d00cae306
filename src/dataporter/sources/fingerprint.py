"""Fingerprints: cheap evidence that two datasets are the same or not.

A fingerprint is what the dataset knows of itself, or a hash of what lies open: tensors, arrays
and lists of these by shape, dtype and some of their values, files by name and size. It takes
microseconds, whatever the size of the data. It is no proof: values that are not among those
looked at may differ. A dataset that shows nothing has none, and then only its length is
compared at a resume.

Not looked at: samples, which only the dataset's own code can make; values on a device, in
sparse and quantised tensors, in arrays of objects; when files were written, since a copy of
the same data on another machine is the same data.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from dataporter.errors import OptionTypeError
from dataporter.law.datasets import declares_fingerprint
from dataporter.law.keys import mix

# Looked at to tell one dataset from another: indices of a split, values of an array, entries
# of a list, files. A value of a mapped file is a page that may have to be read from a disk.
_INDICES = 64
_VALUES = 256
_MAPPED_VALUES = 16
_ENTRIES = 16
_DEPTH = 3
_FILES = 8
_PROBE_KEY = 0

# Where datasets keep the files that they read, torchvision's among them.
_FILE_LISTS = ("files", "paths", "filenames", "file_paths", "samples")


def dataset_length(dataset: Any) -> int | None:
    """`len(dataset)`, or None where it has none."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


class Fingerprint:
    """The fingerprint of a dataset, while a loader uses it.

    It is taken when it is first asked for, and its values are looked at again at each pass.
    Data that has changed since, as a replay buffer does, has no fingerprint from then on: a
    resume has other values then, and is right. That it has grown is noticed at once.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._told: dict[int, str | None] = {}  # what datasets say of themselves, by identity
        self._taken: str | None = None
        self._length: int | None = None  # of the dataset, when it was taken
        self._is_taken = False

    def __call__(self) -> str | None:
        """Give the fingerprint, None if there is none."""
        if not self._is_taken:
            self._taken, self._length = self._take(), dataset_length(self._dataset)
            self._is_taken = True
        elif self._is_of_contents and dataset_length(self._dataset) != self._length:
            self._taken = None
        return self._taken

    def look_again(self) -> None:
        """Notice if the data has changed since."""
        is_new = not self._is_taken
        if self() is not None and not is_new and self._take() != self._taken:
            self._taken = None

    @property
    def _is_of_contents(self) -> bool:
        return self._taken is not None and self._ask(self._dataset) is None

    def _take(self) -> str | None:
        return _fingerprint(self._dataset, self._ask)

    def _ask(self, dataset: Any) -> str | None:
        # Once: it may cost what it likes.
        if id(dataset) not in self._told:
            self._told[id(dataset)] = declared_fingerprint(dataset)
        return self._told[id(dataset)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_told": {}}  # a copy has datasets of other identities


def dataset_fingerprint(dataset: Any) -> str | None:
    """Take a dataset's fingerprint.

    In this order: the user's own `fingerprint()`, Hugging Face's `_fingerprint`, that of what a
    `Subset` or `ConcatDataset` is made of, and a hash of tensors, arrays and files.

    >>> class Corpus(list):
    ...     def fingerprint(self):
    ...         return "wiki-2026-11"
    >>> dataset_fingerprint(Corpus())
    'wiki-2026-11'
    >>> dataset_fingerprint(torch.arange(5))
    'contents-e1b32510c938'
    >>> dataset_fingerprint(["a", "b"]) is None
    True
    """
    return _fingerprint(dataset, declared_fingerprint)


_Ask = Callable[[Any], str | None]


def _fingerprint(dataset: Any, ask: _Ask) -> str | None:
    told = ask(dataset)
    if told is not None:
        return told
    if isinstance(dataset, Subset):
        return f"{_fingerprint(dataset.dataset, ask) or ''}[{_split_hash(dataset)}]"
    if isinstance(dataset, ConcatDataset):
        chosen = [dataset.datasets[number] for number in _some(len(dataset.datasets), _ENTRIES)]
        parts = [(_fingerprint(part, ask), dataset_length(part)) for part in chosen]
        known = any(found is not None for found, _ in parts)
        return _hashed(f"{dataset.cumulative_sizes[-1]} {parts}") if known else None
    contents = _contents(dataset)
    return None if contents is None else _hashed(contents)


def _hashed(contents: str) -> str:
    return f"contents-{hashlib.blake2b(contents.encode(), digest_size=6).hexdigest()}"


def _contents(dataset: Any) -> str | None:
    """Hash the accessible contents of a dataset; None if there are none."""
    if isinstance(dataset, TensorDataset):
        return _shown(list(dataset.tensors))
    if isinstance(dataset, torch.Tensor | np.ndarray):
        return _shown(dataset)
    if type(dataset) in (list, tuple):
        entries = [dataset[number] for number in _some(len(dataset), _ENTRIES)]
        held = any(_holds_arrays(entry) for entry in entries)
        return _shown([len(dataset), *entries]) if held else None
    return _files(dataset)


def _holds_arrays(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value
    nested = isinstance(value, dict | list | tuple)
    return isinstance(value, torch.Tensor | np.ndarray) or (
        nested and any(isinstance(part, torch.Tensor | np.ndarray) for part in parts)
    )


def _shown(value: Any, depth: int = 0) -> str | None:
    """A value as text, of which some is left out where it is long; None where that is unknown."""
    if isinstance(value, torch.Tensor):
        # A nested tensor has no shape, or one whose ragged length is numbered by the process.
        shape = (value.size(0), value.dim()) if value.is_nested else tuple(value.shape)
        return f"{shape} {value.dtype} {_tensor_values(value.detach())}"
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype.descr} {_array_values(value)}"
    if isinstance(value, str | bytes):
        return f"{len(value)} {value[:_VALUES]!r} {value[-_VALUES:]!r}"
    if value is None or isinstance(value, bool | int | float | complex | np.generic):
        return repr(_plain_number(value))
    if isinstance(value, dict):
        value = list(value.items())
    if not isinstance(value, list | tuple) or depth > _DEPTH:
        return None
    parts = [_shown(part, depth + 1) for part in value[: _ENTRIES + 1]]
    return None if None in parts else f"{len(value)} {parts}"


def _tensor_values(tensor: torch.Tensor) -> str:
    is_dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
    if not is_dense or not tensor.is_cpu or tensor.is_conj() or tensor.is_neg():
        return str(tensor.layout)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype.itemsize not in _WORDS:
        return ""
    is_mapped = getattr(tensor.untyped_storage(), "filename", None) is not None
    words = tensor.view(_WORDS[tensor.dtype.itemsize]).numpy()
    return _words(words, _MAPPED_VALUES if is_mapped else _VALUES)


def _array_values(array: NDArray[Any]) -> str:
    if array.dtype.hasobject:
        return ""
    return _words(np.asarray(array), _MAPPED_VALUES if isinstance(array, np.memmap) else _VALUES)


def _words(array: NDArray[Any], count: int) -> str:
    """Some values, bit by bit, at places that depend on nothing but how many there are."""
    if array.ndim == 0 or array.size == 0:
        return array.tobytes().hex()
    places = np.unravel_index(_some(array.size, count), array.shape)
    return array[places].tobytes().hex()


# The integers that stand for a dtype, by its size in bytes, since not all have values to be read.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _some(length: int, count: int) -> NDArray[np.int64]:
    """All numbers below `length`, or `count` of them, scattered; always the same ones."""
    if length <= count:
        return np.arange(length)
    scattered = mix(_PROBE_KEY, np.arange(count, dtype=np.int64))
    return np.sort((scattered % np.uint64(length)).astype(np.int64))


def _files(dataset: Any) -> str | None:
    """Names and sizes of some of the files that a dataset lists in an attribute."""
    # Not by getattr: a property may run anything.
    kept = getattr(dataset, "__dict__", {})
    for name in _FILE_LISTS:
        listed = kept.get(name)
        if isinstance(listed, list | tuple) and listed:
            entries = [listed[number] for number in _some(len(listed), _FILES)]
            # torchvision's are pairs of a file and a class.
            paths = [entry[0] if isinstance(entry, tuple) and entry else entry for entry in entries]
            if all(isinstance(path, str | os.PathLike) for path in paths):
                return _sized(name, len(listed), paths)
    return None


def _sized(name: str, count: int, paths: list[Any]) -> str | None:
    try:
        sizes = [(Path(path).name, Path(path).stat().st_size) for path in paths]
    except (OSError, ValueError):  # names of something else, or not to be reached from here
        return None
    return f"{name} {count} {sizes}"


def declared_fingerprint(dataset: Any) -> str | None:
    """Return the fingerprint that a dataset declares."""
    if declares_fingerprint(dataset):
        found = dataset.fingerprint()
        if not isinstance(found, str):
            msg = (
                f"{type(dataset).__name__}.fingerprint() must return a string, "
                f"found {type(found).__name__} {found!r}."
            )
            raise OptionTypeError(msg)
        return found
    known = getattr(dataset, "_fingerprint", None)
    return known if isinstance(known, str) else None


def _split_hash(subset: Subset[Any]) -> str:
    count = len(subset.indices)
    probes = np.unique(np.linspace(0, max(count - 1, 0), min(_INDICES, count)).astype(int))
    seen = [_plain_number(subset.indices[probe]) for probe in probes.tolist()]
    return hashlib.blake2b(repr((count, seen)).encode(), digest_size=6).hexdigest()


def _plain_number(number: Any) -> Any:
    """A number as Python's, whether it was stored as one of NumPy's or torch's."""
    return number.item() if hasattr(number, "item") else number
