"""One number for each sample of a dataset, such as its tokens, counted once and kept in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import LeftOutError
from dataporter.law.datasets import results_folder_of
from dataporter.system.files import user_folder
from dataporter.system.processes import usable_cores
from dataporter.views.kept import made_once
from dataporter.views.parts import Look, in_order, read

_BATCH = 256
_FEW = 20_000  # samples that are counted without workers
_MOST_WORKERS = 16
MOST = np.iinfo(np.int32).max


class Counted(NamedTuple):
    """A number for each sample of `data`, by a function that has a name.

    `made_from` names all that the numbers are made from: they are kept by it, or not at all.
    """

    data: Any
    number_of: Callable[[int, Any], int]  # index, sample
    name: str
    made_from: str | None

    def open(
        self, folders: Sequence[Path] = (), *, num_workers: int | None = None
    ) -> NDArray[np.int32]:
        """Return the numbers, and count them first unless a file has them.

        They are kept in the first folder that can be written to; without a folder, or if it is not
        known what they are made from, nowhere.
        """
        numbers = np.zeros(len(self.data), np.int32)
        if self.made_from is None or not folders:
            return np.concatenate([numbers[:0], *self.evaluate(0, num_workers)])
        named = json.dumps([self.made_from, len(self.data), self.name])
        digest = hashlib.blake2b(named.encode(errors="surrogatepass"), digest_size=12).hexdigest()
        return made_once(
            [folder / f"counted-{digest}.numbers" for folder in folders],
            numbers,
            lambda known: self.evaluate(known, num_workers),
            f"the numbers of {self.name}",
            lambda _: {"name": self.name},
        )

    def evaluate(self, start: int, num_workers: int | None = None) -> Iterator[NDArray[np.int32]]:
        """Return the numbers from sample `start` on, some at a time."""
        remaining = len(self.data) - start
        if num_workers is None:
            num_workers = 0 if remaining < _FEW else min(usable_cores(), _MOST_WORKERS)
        return in_order(
            _Numbers(self.data, self.number_of),
            start,
            batch_size=_BATCH,
            num_workers=num_workers,
            collate_fn=_as_array,
        )


def places_of(data: Any, folder: Path | None) -> list[Path]:
    """Return the folders in which numbers may be kept: beside the index, else the user's own."""
    if folder is not None:
        return [folder]
    beside, own = results_folder_of(data), user_folder()
    places = [] if beside is None else [beside]
    return places if own is None else [*places, own / "counted"]


class _Numbers(Look):
    """The numbers of a dataset's samples; 0 for one that the dataset leaves out."""

    def __init__(self, data: Any, number_of: Callable[[int, Any], int]) -> None:
        super().__init__(data)
        self._number_of = number_of

    def __getitem__(self, index: int) -> int:
        try:
            sample = self.data[index]
        except LeftOutError:
            return 0
        return self._number_of(index, sample)

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        try:
            samples = read(self.data, indices)
        except LeftOutError:
            return [self[index] for index in indices]
        return list(map(self._number_of, indices, samples))


def _as_array(numbers: list[int]) -> NDArray[np.int32]:
    return np.array(numbers, dtype=np.int32)
