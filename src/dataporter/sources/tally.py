"""The tally of a pass: batches delivered, their samples and bytes, and the time waited for them.

It is always on, so it costs next to nothing. Batches are counted by the progress, which a pass
keeps anyway. Of batches that take less than 25 milliseconds only some are measured, and the
others are taken to be like them; of all others, each one is.

A tally is read at any moment, from any thread and in signal handlers, without a lock: what belongs
together is one value, which is replaced as a whole.

Beside it stand the counters that a dataset keeps of itself: a cache's hits, a storage's requests.
"""

from __future__ import annotations

import logging
from collections import Counter, UserDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from numbers import Real
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from dataporter.fetch.tasks import Task
from dataporter.law.datasets import stats_of
from dataporter.law.state import Progress
from dataporter.sources.readings import Contents

_log = logging.getLogger(__name__)

_SELDOM = 25_000_000  # ns between two measurements, at least: one takes up to 20,000
_MOST_UNMEASURED = 1023  # batches between two measurements
_FIRST = 3  # batches of a pass that are measured in any case
_WEIGHING = 4000  # the time between two weighings, in multiples of what one takes


class Flow(NamedTuple):
    """An amount of delivered data, and the time that it took."""

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    spent: int = 0  # ns: waiting, and the consumer's own work
    waited: int = 0  # ns of those

    def plus(self, other: Flow) -> Flow:
        """Add two flows.

        >>> Flow(1, 32).plus(Flow(2, 64)).samples
        96
        """
        return Flow(*(one + another for one, another in zip(self, other, strict=True)))


class _Measured(NamedTuple):
    """The tally as of the batch that was measured last."""

    number: int  # of that batch, in its epoch
    position: int  # samples of the epoch up to there
    at: int  # ns; when it was handed over
    batches: int = 0  # from here on as in `Flow`
    samples: int = 0
    bytes: int = 0
    spent: int = 0
    waited: int = 0
    size: int = 0  # samples in it
    weight: float = 0.0  # bytes of a sample, as of the batch that was weighed last


class Tally:
    """Counts what one pass delivers. `last` is what the batch delivered last leads to."""

    __slots__ = (
        *("_fast", "_first", "_measured", "_measurements", "_weigh_at"),
        *("last", "left_out", "undelivered", "unmeasured"),
    )

    def __init__(self, start: Progress, began: int) -> None:
        self.last: tuple[Progress, Contents] = (start, None)
        self.undelivered = 0  # batches that count in the progress, but failed or are empty
        self.left_out = 0  # samples that count in the progress, and were not handed over
        self.unmeasured = 0  # batches that come before one is measured
        self._first = start.batches_processed
        self._measured = _Measured(self._first, start.samples_processed, began)
        self._measurements = self._fast = 0
        self._weigh_at = began

    def note_wait(self, asked: int) -> None:
        """Take note that somebody has waited since `asked`, for something to be handed over later.

        That is the start of workers, or a batch that was looked ahead to.
        """
        before = self._measured
        self._measured = before._replace(waited=before.waited + monotonic_ns() - asked)

    def measure(self, delivery: tuple[Progress, Contents], batch: Any, asked: int) -> None:
        """Measure a batch that was asked for at a time and is about to be handed over."""
        there, before = monotonic_ns(), self._measured
        progress, contents = delivery
        number = progress.batches_processed
        batches = max(number - before.number, 1)
        spent, weight = there - before.at, before.weight
        samples = _samples(before, delivery, batches)
        size = samples / batches if contents is None else size_of(contents)
        if there >= self._weigh_at:
            # Nested tensors, containers that contain themselves, batches without samples.
            with suppress(RuntimeError, ZeroDivisionError):
                weight = weight_of(batch) / size
            self._weigh_at = there + _WEIGHING * (monotonic_ns() - there)
        self._measured = _Measured(
            number,
            progress.samples_processed,
            there,
            before.batches + batches,
            before.samples + samples,
            before.bytes + round(weight * samples),
            before.spent + spent,
            before.waited + min((there - asked) * batches, spent),
            int(size),
            weight,
        )
        # Few at first, and after a change: the consumer may be slow with the next one. Not always
        # the same number: every eighth batch may be unlike the others.
        self._fast = min(_SELDOM // (spent // batches + 1), _MOST_UNMEASURED, 2 * self._fast + 1)
        self._measurements += 1
        few = self._fast * (self._measurements % 4) // 8
        self.unmeasured = self._fast - few if self._measurements > _FIRST else 0

    def flow(self) -> Flow:
        """Return what was delivered up to now; the next batch is measured."""
        self.unmeasured = 0
        last, done = self.last, self._measured
        number = last[0].batches_processed
        batches = max(number - self._first - self.undelivered, 0)
        since = number - done.number  # batches that were not measured
        if since <= 0:
            samples = max(done.samples - self.left_out, 0)
            return Flow(batches, samples, done.bytes, done.spent, done.waited)
        samples, measured = _samples(done, last, since), max(done.batches, 1)
        return Flow(
            batches,
            max(done.samples + samples - self.left_out, 0),
            done.bytes + round(done.weight * samples),
            done.spent + done.spent * since // measured,
            done.waited + done.waited * since // measured,
        )


class Tallies:
    """The tallies of a loader: all passes together, and the newest one. A copy begins anew."""

    def __init__(self) -> None:
        self._now: tuple[Flow, Tally | None] = (Flow(), None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tallies, ()

    def begin(self, start: Progress, began: int) -> Tally:
        """Return the tally of a pass that begins."""
        tally = Tally(start, began)
        self._now = self.read()[0], tally
        return tally

    def read(self) -> tuple[Flow, Flow]:
        """Return what all passes and what the newest one have delivered."""
        before, tally = self._now
        newest = Flow() if tally is None else tally.flow()
        return before.plus(newest), newest


def _samples(before: _Measured, delivery: tuple[Progress, Contents], batches: int) -> int:
    """Return the samples of the batches since a measured one: exact if those are of one size."""
    progress, contents = delivery
    if contents is None:  # a stream, whose positions are this rank's own samples
        return progress.samples_processed - before.position
    return before.size * (batches - 1) + size_of(contents)


def size_of(contents: tuple[Any, Task]) -> int:
    """Return the samples that were asked for as a batch."""
    payload: Any = contents[1].payload
    return len(payload.indices)


def weight_of(batch: Any) -> int:
    """Count the bytes of the tensors, arrays and byte strings in a batch.

    It runs no code of the user's: what a class of their own holds is not counted.

    >>> weight_of({"x": torch.zeros(8), "names": ["a", "b"], "y": np.zeros(2)})
    48
    """
    kind = type(batch)
    if kind is torch.Tensor:
        return batch.nbytes if batch.layout is torch.strided else 0
    if kind is np.ndarray:
        return batch.nbytes  # type: ignore[no-any-return]
    if kind is bytes:
        return len(batch)
    return sum(map(weight_of, _parts(batch)))


def _parts(batch: Any) -> Iterable[Any]:
    if isinstance(batch, dict):
        return dict.values(batch)
    if isinstance(batch, list):
        return list.__iter__(batch)
    if isinstance(batch, tuple):
        return tuple.__iter__(batch)
    if isinstance(batch, UserDict):
        return vars(batch).get("data", {}).values()  # type: ignore[no-any-return]
    if is_dataclass(batch) and hasattr(batch, "__dict__"):
        return vars(batch).values()
    return ()


def counters_of(dataset: Any) -> dict[str, Any]:
    """Return the numbers that a dataset's `stats()` gives, by name; none without that method.

    A `Subset` or `ConcatDataset` has those of what it is made of.

    >>> class Corpus(list):
    ...     def stats(self):
    ...         return {"hits": 3, "name": "wiki"}
    >>> counters_of(ConcatDataset([Corpus("ab"), Corpus("c")]))
    {'hits': 6}
    """
    if stats := stats_of(dataset):
        return _numbers(stats)
    if isinstance(dataset, Subset):
        return counters_of(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return summed_counters(dataset.datasets)
    return {}


def summed_counters(datasets: Iterable[Any]) -> dict[str, Any]:
    """Return the counters of several datasets together. One that occurs twice counts once."""
    total: Counter[str] = Counter()
    for dataset in {id(dataset): dataset for dataset in datasets}.values():
        total.update(counters_of(dataset))
    return dict(total)


def _numbers(stats: Any) -> dict[str, Any]:
    try:
        found = stats()
    except Exception as error:  # noqa: BLE001  a method of the user's, maybe for another purpose
        _log.debug("%s() failed, so its counters are left out: %r", stats.__qualname__, error)
        return {}
    if not isinstance(found, Mapping):
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, Real)}
