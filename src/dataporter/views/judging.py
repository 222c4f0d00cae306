"""Evaluating a predicate over all samples of a dataset: in parallel, once, and resumable.

The samples are looked at in their order (`parts`), and verdicts go to a file as they come.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.errors import LeftOutError, PredicateError, PredicateWarning
from dataporter.layout import counted
from dataporter.system.processes import can_start_workers, usable_cores
from dataporter.user_warnings import warn_user
from dataporter.views.bitmap import Bitmap, packed, size_of
from dataporter.views.kept import made_once, read_about
from dataporter.views.parts import Look, in_order, read

_MOST = 512  # samples in a batch
_BATCHES = 16  # at least, for each worker
_EVERY = 10.0  # seconds between lines in the log

_log = logging.getLogger(__name__)

Predicate = Callable[[Any], Any]


class Judged(Look):
    """The verdicts of a predicate on the samples of a dataset, by index."""

    def __init__(self, data: Any, predicate: Predicate, name: str) -> None:
        super().__init__(data)
        self._predicate = predicate
        self._name = name

    def __getitem__(self, index: int) -> bool:
        try:
            sample = self.data[index]
        except LeftOutError:
            return False
        return self.passes(index, sample)

    def __getitems__(self, indices: Sequence[int]) -> list[bool]:
        """Judge many samples, which are read at once if the dataset can."""
        try:
            samples = read(self.data, indices)
        except LeftOutError:
            samples = None
        if not isinstance(samples, list) or len(samples) != len(indices):  # no list of samples
            return [self[index] for index in indices]
        return [self.passes(*each) for each in zip(indices, samples, strict=True)]

    def passes(self, index: int, sample: Any) -> bool:
        """Evaluate the predicate for a sample."""
        try:
            verdict = self._predicate(sample)
            if isinstance(verdict, bool | np.bool_):
                return bool(verdict)
            if isinstance(verdict, np.ndarray | torch.Tensor) and _is_one_bool(verdict):
                return bool(verdict)
        except Exception as error:
            msg = (
                f"the predicate {self._name!r} raised an error for sample {index}: {error!r:.200}. "
                "Correct the predicate or the data. Samples that were evaluated before are kept."
            )
            raise PredicateError(msg) from error
        msg = (
            f"the predicate {self._name!r} must return True or False, found "
            f"{type(verdict).__name__} {verdict!r:.80} for sample {index}. Compare, or use bool()."
        )
        raise PredicateError(msg)


def _is_one_bool(verdict: Any) -> bool:
    return verdict.dtype in (np.bool_, torch.bool) and verdict.shape in ((), (1,))


class Place(NamedTuple):
    """The file of a predicate's verdicts: by the data and a name, and by its code."""

    folder: Path
    key: str  # hash of the data and the name
    code: str

    @property
    def path(self) -> Path:
        """The file of verdicts."""
        return self.folder / f"where-{self.key}-{self.code}.bits"

    def others(self) -> list[dict[str, Any]]:
        """Return what is known of other predicates that had this name, over the same data."""
        found = []
        for path in sorted(self.folder.glob(f"where-{self.key}-*.bits")):
            with suppress(OSError, ValueError):
                if path != self.path:
                    found.append(read_about(path))
        return found


def kept_samples(
    data: Any, predicate: Predicate, name: str, *, place: Place | None, workers: int | None
) -> Bitmap:
    """Return a bit for each sample that passes; read from files, or evaluated.

    Of several processes that ask, one evaluates. Without a place the verdicts are kept nowhere.
    """
    judged = Judged(data, predicate, name)
    length = len(judged)
    bits = np.zeros(size_of(length), np.uint8)

    def evaluated(known: int) -> Iterator[NDArray[np.uint8]]:
        if place is not None:
            _warn_of_others(place, name)
        return _evaluated(judged, name, predicate, workers, known)

    if place is None:
        known = 0
        for verdicts in evaluated(0):
            bits[known : known + len(verdicts)] = verdicts
            known += len(verdicts)
        return Bitmap(bits, length)

    def about(bits: NDArray[np.uint8]) -> dict[str, Any]:
        python = ".".join(map(str, sys.version_info[:2]))
        kept = {"samples": length, "kept": len(Bitmap(bits, length))}
        return {"name": name, "code": place.code, "python": python, **kept}

    what = f"verdicts of {name!r}"
    return Bitmap(made_once([place.path], bits, evaluated, what, about), length)


def _evaluated(
    judged: Judged, name: str, predicate: Predicate, workers: int | None, known: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield pieces of the bitmap, after the bytes that are known."""
    length = len(judged)
    if workers is None:
        workers = usable_cores() if can_start_workers() else 0
    left = length - 8 * known
    size = min(left // (_BATCHES * max(workers, 1)) // 8 * 8, _MOST) or 8
    workers = min(workers, -(-left // size))
    pieces = in_order(
        judged,
        8 * known,
        batch_size=size,
        num_workers=workers,
        collate_fn=_packed_verdicts,
        context=_context(predicate),
    )
    told = time.monotonic()
    for verdicts in pieces:
        yield verdicts
        known += len(verdicts)
        if time.monotonic() - told >= _EVERY:
            told = time.monotonic()
            done = min(8 * known, length)
            _log.info("evaluated %r for %s of %s samples", name, f"{done:,}", f"{length:,}")


def _packed_verdicts(verdicts: list[bool]) -> NDArray[np.uint8]:
    return packed(np.array(verdicts, dtype=np.bool_))


def _context(predicate: Predicate) -> str | None:
    """Fork workers for a predicate that cannot be sent to others, such as a lambda."""
    try:
        pickle.dumps(predicate)
    except Exception:  # noqa: BLE001  whatever its class does
        return "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    return None


def _warn_of_others(place: Place, name: str) -> None:
    others = place.others()
    if not others:
        return
    known = ", ".join(
        f"code {each.get('code')}, Python {each.get('python')}, which keeps "
        f"{each.get('kept', 0):,} of {counted(each.get('samples', 0), 'sample')}"
        for each in others
    )
    msg = (
        f"Another predicate was evaluated over this data under the name {name!r} ({known}). The "
        f"one of now (code {place.code}) is evaluated anew, and a state of the other one is "
        "refused unless both keep the same samples. Give different predicates different names."
    )
    warn_user(msg, PredicateWarning)
