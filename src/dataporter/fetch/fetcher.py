"""The fetcher: turns a task's indices into a batch, with each sample's own randomness.

Three ways, the first that fits: gathering without user code (`vectorised`), the dataset's
own `__getitems__`, or `dataset[index]` one by one; then collation and conversion.

What `__getitems__` returns is a list of samples or whatever else `collate_fn` understands. It is
handed on as it is, unless random numbers were drawn for it. Then each sample is to have its
own, so samples are fetched one by one. What is no list of these, or cannot be fetched
so, has the random numbers of its first sample.

A sample for which the dataset raises `LeftOutError` is left out of its batch, quietly.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import default_collate, default_convert

from dataporter.errors import LeftOutError, OptionTypeError, TooManySkippedError, add_note
from dataporter.fetch.collate import Empty, collate
from dataporter.fetch.randomness import EpochKeys, LazySeeding, finished
from dataporter.fetch.tasks import Samples, indices_in_words
from dataporter.fetch.timing import COLLATE, CONVERT, FETCH, Timing
from dataporter.fetch.vectorised import gather_for
from dataporter.law.datasets import Gather

# Reading these runs nobody's code, so nothing can be drawn there.
CONTAINERS = (list, tuple, range, dict)

Function = TypeVar("Function", bound=Callable[..., Any])

_log = logging.getLogger(__name__)


def draws_nothing(function: Function) -> Function:
    """Mark a collate function or conversion that draws no random numbers.

    It is not seeded, which saves 10 µs a batch. What it calls of the user's goes through
    `call_seeded`. A method that a subclass overrides is to be marked anew.
    """
    function.draws_nothing = True  # type: ignore[attr-defined]
    return function


def _may_draw(function: Any) -> bool:
    """Return True for what is not marked.

    >>> class Collator:
    ...     @draws_nothing
    ...     def __call__(self, samples):
    ...         return samples
    >>> class Noisy(Collator):
    ...     def __call__(self, samples):
    ...         return [sample + torch.rand(1) for sample in samples]
    >>> _may_draw(Collator()), _may_draw(Noisy())
    (False, True)
    """
    called = function if hasattr(function, "__name__") else type(function).__call__
    return getattr(called, "draws_nothing", False) is not True


class Skipped(NamedTuple):
    """A sample that failed and was left out of its batch."""

    epoch: int
    position: int
    index: Any
    error: str


class _Empty:
    """Stands for a batch of which every sample was left out."""

    def __reduce__(self) -> str:
        return "EMPTY"  # the one of this module, in every process


EMPTY = _Empty()


class Partial:
    """A batch without some of its samples; without any, `batch` is `EMPTY`."""

    __slots__ = ("batch", "left_out", "skipped")

    def __init__(self, batch: Any, left_out: Sequence[int], skipped: Sequence[Skipped]) -> None:
        self.batch = batch
        self.left_out = left_out  # numbers in the batch as it was asked for
        self.skipped = skipped  # those of them that failed


class Failed:
    """Stands for a batch that could not be made; the error is the caller's to see."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Late:
    """Stands for a batch that is not there in time. It stays the next one."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Fetches(Protocol):
    """The fetcher that an engine runs: it makes a batch of a task's payload."""

    @property
    def timing(self) -> Timing | None:
        """The record of times; None unless the loader is profiled."""
        ...

    def begin_pass(self) -> None:
        """Look at the dataset anew."""
        ...

    def __call__(self, payload: Any, empty: Empty | None = None, /) -> Any:
        """Fetch a batch, into what `empty` gives where that is possible."""
        ...


class Fetcher:
    """Fetches batches of a dataset.

    With `batched=False` (a loader with batch_size=None) a batch is one sample, given to
    `collate_fn` by itself.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        collate_fn: Callable[[Any], Any] | None,
        converter: Any = None,
        batched: bool = True,
        randomness: bool = True,
        skips_errors: bool = False,
        max_skipped: int | None = None,
    ) -> None:
        self._dataset = dataset
        self.is_batched = batched
        self._skips_errors = skips_errors
        self.skipped: list[Skipped] = []  # the samples left out so far, each once an epoch
        self._known: set[tuple[int, int, str]] = set()  # those: epoch, position, index
        self._max_skipped = max_skipped
        self._num_skipped: Counter[int] = Counter()  # by epoch
        self.timing: Timing | None = None  # where times are noted, while it is profiled
        self._fetching = LazySeeding(seeds_globals=randomness)
        self._fetching_at_once = LazySeeding(seeds_globals=randomness)
        self._randomness = randomness
        self._convert = conversion_of(converter)
        self.collate_with(collate_fn)
        self._gather: Gather | None = None
        self._getitems = getitems_of(dataset) if batched else None
        # Whether what __getitems__ returns can be had one by one: not asked before it draws.
        self._separable: bool | None = None
        self._leaves_out = False  # whether the dataset has left out a sample

    def collate_with(self, collate_fn: Callable[[Any], Any] | None) -> None:
        """Make batches with `collate_fn`; None stands for torch's default."""
        batched = self.is_batched
        is_default = collate_fn in (None, default_collate if batched else default_convert)
        if collate_fn is None or is_default:
            collate_fn = collate if batched else default_convert
        self._collate = collate_fn
        users = ([] if is_default else [collate_fn]) + ([self._convert] if self._convert else [])
        self._runs_user_code = bool(users)
        self._draws_nothing = not any(map(_may_draw, users))
        self._may_gather = batched and is_default

    def begin_pass(self) -> None:
        """Look at the dataset anew: it may have been given another format since."""
        self._gather = gather_for(self._dataset) if self._may_gather else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_gather": None}  # closures do not travel; begin_pass makes them

    def __call__(
        self,
        wanted: Samples,
        empty: Empty | None = None,
    ) -> Any:
        """Make a batch of samples; a `Partial` if some are left out.

        What is stacked or gathered is written into `empty(shape, dtype)`, if given; unless
        user code has the last word, which may leave nothing of it.
        """
        indices, positions, keys = wanted
        if self._runs_user_code:
            empty = None
        batch = self._gathered(indices, empty)
        if batch is not None:
            if self.timing is not None:
                self.timing.end(FETCH, len(positions))
            if self._convert is None:
                return batch
            return self._finished(self._converted, batch, wanted, [])
        listed = indices.tolist() if isinstance(indices, np.ndarray) else indices
        samples, left_out, skipped = self._samples(listed, positions, keys)
        kept = len(positions) - len(left_out)
        if self.timing is not None:
            self.timing.end(FETCH, kept, draws=self._fetching.draws)
        if kept == 0 < len(positions):
            return Partial(EMPTY, left_out, skipped)
        one = samples if self.is_batched else samples[0]
        finish: Callable[[Any], Any] = self._collate_and_convert
        if empty is not None and self._collate is collate:
            finish = partial(self._stacked, empty=empty)
        batch = self._finished(finish, one, wanted, left_out)
        return Partial(batch, left_out, skipped) if left_out else batch

    def _finished(
        self, finish: Callable[[Any], Any], batch: Any, wanted: Samples, left_out: list[int]
    ) -> Any:
        """Collate and convert, or convert alone. Errors name the batch's indices."""
        indices, positions, keys = wanted
        try:
            if not self._runs_user_code:
                return finish(batch)
            # Seeded before it may draw: what it did to the samples could not be done again.
            return finished(
                finish,
                batch,
                keys.batch_key(positions),
                sample_keys=lambda: keys.sample_keys(np.delete(positions, left_out)),
                seeds_globals=self._randomness,
                draws_nothing=self._draws_nothing,
            )
        except Exception as error:
            made_of = [index for at, index in enumerate(indices) if at not in left_out]
            add_note(error, f"dataporter was making a batch of {indices_in_words(made_of)}")
            raise

    def _gathered(self, indices: Any, empty: Empty | None) -> Any:
        """Gather a batch; None if its samples are to be fetched."""
        rows = _as_rows(indices) if self._gather is not None else None
        if self._gather is None or rows is None:
            return None
        try:
            return self._gather(rows, empty)
        except Exception:
            if not self._skips_errors:
                raise
            return None  # one by one, it turns out which samples are to be left out

    def _samples(
        self, wanted: Sequence[Any], positions: NDArray[np.int64], keys: EpochKeys
    ) -> tuple[Any, list[int], list[Skipped]]:
        """The samples that are there, the numbers of the others, and those of them that failed."""
        try:
            if not self._leaves_out:  # else it would mostly be in vain
                return self._all_samples(wanted, positions, keys), [], []
        except LeftOutError:
            self._leaves_out = True
        except Exception:
            if not self._skips_errors:
                raise
        good: list[Any] = []
        kept: list[int] = []
        left_out: list[int] = []
        skipped: list[Skipped] = []
        for number, index in enumerate(wanted):
            try:
                good.append(self._all_samples([index], positions[number : number + 1], keys))
                kept.append(number)
            except LeftOutError:
                self._leaves_out = True
                left_out.append(number)
            except Exception as error:
                if not self._skips_errors:
                    raise
                at = int(positions[number])
                skipped.append(Skipped(keys.epoch, at, index, repr(error)))
                left_out.append(number)
        if kept and self._getitems is not None:  # which may return no list that could be added to
            remaining = [wanted[number] for number in kept]
            return self._all_samples(remaining, positions[kept], keys), left_out, skipped
        return [sample for (sample,) in good], left_out, skipped

    def note_skipped(self, skipped: Skipped) -> None:
        """List and log a sample that is left out, unless it is listed already.

        A batch that was looked ahead to, or interrupted, is fetched again. Raise
        `TooManySkippedError` if the epoch may leave out no more.
        """
        known = skipped.epoch, skipped.position, repr(skipped.index)
        if known in self._known:
            return
        most = self._max_skipped
        if most is not None and self._num_skipped[skipped.epoch] >= most:
            raise _too_many(skipped, most)
        self._num_skipped[skipped.epoch] += 1
        self._known.add(known)
        self.skipped.append(skipped)
        _log.warning("left out the sample at index %r: %s", skipped.index, skipped.error)

    def _all_samples(
        self, wanted: Sequence[Any], positions: NDArray[np.int64], keys: EpochKeys
    ) -> Any:
        if type(self._dataset) in CONTAINERS:
            return [self._dataset[index] for index in wanted]
        if self._getitems is None or self._separable:
            return self._one_by_one(wanted, positions, keys)
        drawing = self._fetching_at_once
        try:
            (batch,) = drawing.map(
                self._getitems, [wanted], keys=lambda: keys.sample_keys(positions[:1]) or [0]
            )
        except Exception:
            if drawing.draws and self._may_separate:
                # With numbers of their own, samples may not fail.
                with suppress(NotImplementedError):
                    return self._one_by_one(wanted, positions, keys)
            raise
        if drawing.draws and self._may_separate:
            return self._separated(batch, wanted, positions, keys)
        return batch

    @property
    def _may_separate(self) -> bool:
        return self._separable is None and hasattr(self._dataset, "__getitem__")

    def _separated(
        self, batch: Any, wanted: Sequence[Any], positions: NDArray[np.int64], keys: EpochKeys
    ) -> Any:
        """The samples of a batch that draws, one by one; the batch itself if it has none."""
        self._separable = False
        if isinstance(batch, Sequence) and len(batch) == len(wanted):
            with suppress(NotImplementedError):  # of torch's Dataset
                samples = self._one_by_one(wanted, positions, keys)
                # A list of two may be two samples, or the inputs and the targets of two.
                self._separable = not set(map(_make_of, samples)).isdisjoint(map(_make_of, batch))
        return samples if self._separable else batch

    def _one_by_one(
        self, wanted: Sequence[Any], positions: NDArray[np.int64], keys: EpochKeys
    ) -> list[Any]:
        each = self._dataset.__getitem__
        if self.timing is not None:
            each = self.timing.each(each)
        return self._fetching.map(each, wanted, keys=lambda: keys.sample_keys(positions))

    def collated(self, samples: list[Any], empty: Empty | None = None) -> Any:
        """Make a batch of samples as it is done after fetching, seeding aside."""
        if empty is not None and self._collate is collate and self._convert is None:
            return self._stacked(samples, empty)
        return self._collate_and_convert(samples if self.is_batched else samples[0])

    def _stacked(self, samples: list[Any], empty: Empty) -> Any:
        batch = collate(samples, empty)
        if self.timing is not None:
            self.timing.end(COLLATE)
        return batch

    def _collate_and_convert(self, samples: Any) -> Any:
        batch = self._collate(samples)
        if self.timing is not None:
            self.timing.end(COLLATE)
        return batch if self._convert is None else self._converted(batch)

    def _converted(self, batch: Any) -> Any:
        convert: Any = self._convert
        batch = convert(batch)
        if self.timing is not None:
            self.timing.end(CONVERT)
        return batch


def _make_of(sample: Any) -> tuple[type, int | None]:
    """Return the features of a sample that random numbers do not change."""
    return type(sample), getattr(sample, "ndim", None)


def getitems_of(dataset: Any) -> Callable[[Sequence[Any]], Any] | None:
    """Return the dataset's own way to fetch many samples at once, None if it has none."""
    own = getattr(dataset, "__getitems__", None)
    return own if callable(own) else None


def conversion_of(converter: Any, name: str = "converter") -> Callable[[Any], Any] | None:
    """Return the function that a converter applies to a batch; None without a converter."""
    if converter is None:
        return None
    convert = getattr(converter, "convert_batch", converter)
    if not callable(convert):
        msg = (
            f"{name} must be callable or have a convert_batch method, "
            f"found {type(converter).__name__} {converter!r}."
        )
        raise OptionTypeError(msg)
    return convert  # type: ignore[no-any-return]


def _as_rows(indices: Sequence[Any] | NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Indices as an array, None where a sampler of the user's own yields anything else."""
    if isinstance(indices, np.ndarray):
        return indices
    if all(type(index) is int and index >= 0 for index in indices):
        return np.array(indices, dtype=np.int64)
    return None


def _too_many(skipped: Skipped, most: int) -> TooManySkippedError:
    return TooManySkippedError(
        f"More than max_skipped={most:,} samples of epoch {skipped.epoch} cannot be read. The "
        f"last one, at index {skipped.index!r}: {skipped.error}. Repair the data, or allow more. "
        "A resume continues at the same batch."
    )
