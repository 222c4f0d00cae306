"""One number for each sample of a dataset, such as its tokens, counted once and kept in a file.

Samples are read in their order by a loader with workers, and the numbers are appended to a file
under a temporary name. So the size of that file says where a count that was killed goes on. One
process counts, the others on the machine wait for its lock, and find the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import LeftOutError, OptionError
from dataporter.law.datasets import results_folder_of
from dataporter.system.files import user_folder
from dataporter.system.processes import usable_cores
from dataporter.views.parts import Look, in_order, read

try:
    import fcntl
except ImportError:  # Windows, where each process counts for itself
    fcntl = None  # type: ignore[assignment]

_BATCH = 256
_FEW = 20_000  # samples that are counted without workers
_MOST_WORKERS = 16
MOST = np.iinfo(np.int32).max

_log = logging.getLogger(__name__)


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
        if self.made_from is None or not folders:
            return np.concatenate([np.zeros(0, np.int32), *self.evaluate(0, num_workers)])
        named = json.dumps([self.made_from, len(self.data), self.name])
        digest = hashlib.blake2b(named.encode(errors="surrogatepass"), digest_size=12).hexdigest()
        paths = [folder / f"counted-{digest}.int32" for folder in folders]
        for path in paths:
            if path.is_file():
                return self._read(path)
        refused = []
        for path in paths:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(_part(path), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            except OSError as error:
                refused.append(f"{path.parent} ({error.strerror or error})")
                continue
            with contextlib.closing(os.fdopen(descriptor, "r+b", buffering=0)) as file:
                self.wait(file, path)
                if not path.is_file():
                    self._count_into(file, path, num_workers)
                elif not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    _part(path).unlink(missing_ok=True)  # made after the count was finished
            return self._read(path)
        msg = (
            f"the numbers of {self.name} could not be written to {' and '.join(refused)}. Make one "
            "of these folders writable, or pass folder=."
        )
        raise OptionError(msg)

    def wait(self, file: Any, path: Path) -> None:
        """Wait for another process that counts the same, as far as the system has locks."""
        if fcntl is None:
            return
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("waiting for the process that counts %s into %s", self.name, path)
                fcntl.flock(file, fcntl.LOCK_EX)

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

    def _count_into(self, file: Any, path: Path, num_workers: int | None) -> None:
        done = os.fstat(file.fileno()).st_size // 4
        file.truncate(4 * done)
        try:
            for numbers in self.evaluate(done, num_workers):
                file.write(numbers.tobytes())
        except BaseException:
            if os.fstat(file.fileno()).st_size == 0:  # nothing to go on from
                _part(path).unlink(missing_ok=True)
            raise
        os.fsync(file.fileno())
        _part(path).replace(path)

    def _read(self, path: Path) -> NDArray[np.int32]:
        numbers = (
            np.memmap(path, np.int32, "r") if path.stat().st_size else np.zeros(0, dtype=np.int32)
        )
        if len(numbers) != len(self.data):
            msg = (
                f"{path} has {len(numbers):,} numbers of {self.name}, but the data has "
                f"{len(self.data):,} samples. Remove the file: they are counted again."
            )
            raise OptionError(msg)
        return numbers


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


def _part(path: Path) -> Path:
    return path.with_suffix(".part")
