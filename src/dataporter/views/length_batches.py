"""`LengthBatches`: batches of samples of similar length, under a budget of tokens.

Samples are sorted by length once and cut into buckets, whose lengths differ by a few per cent. A
bucket has as many batches as its samples need. In each epoch the samples of a bucket are permuted
and dealt to its batches, and all batches are permuted. Both are functions of (seed, epoch,
position), so the sizes of batches are fixed, their contents change, and a resume is a seek.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataporter.arguments import check_flag, check_int
from dataporter.errors import OptionError, OptionTypeError
from dataporter.law import Order, Permutation
from dataporter.law.keys import key_as_int
from dataporter.law.orders import Derived
from dataporter.layout import counted

_RATIO = 1.08  # of the longest length in a bucket to the shortest, if the user does not say


class LengthBatches:
    """A batch sampler: batches of similar lengths, of at most `max_tokens` tokens with padding.

    >>> from dataporter import ResumableDataLoader
    >>> texts = ["a" * length for length in (3, 9, 3, 3, 9, 3, 9, 3, 3)]
    >>> batches = LengthBatches([len(text) for text in texts], max_tokens=18)
    >>> loader = ResumableDataLoader(texts, batch_sampler=batches, seed=1)
    >>> sorted(sorted(map(len, batch)) for batch in loader)
    [[3, 3, 3, 3, 3, 3], [9], [9, 9]]

    - `lengths`: the tokens of each sample.
    - `max_tokens`: the most tokens of a batch: its number of samples times its longest length.
    - `buckets`: the number of ranges of length. By default lengths in a bucket differ by 8 % at
      most, unless it would have less than a batch.
    - `max_samples`: the most samples of a batch, if there is such a bound.
    - `shuffle`: False keeps the batches and their samples in one order, the shortest first.

    Ranks share the batches, each as many as the others. A position of the loader, and what
    `samples_processed` counts, is a batch. Number of ranks and workers may change at a resume.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        max_tokens: int,
        buckets: int | None = None,
        max_samples: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        check_int("max_tokens", max_tokens, least=1)
        check_int("buckets", buckets, least=1, optional=True)
        check_int("max_samples", max_samples, least=1, optional=True)
        check_flag("shuffle", shuffle)
        self._lengths = _checked_lengths(lengths, max_tokens)
        self.shuffle = shuffle
        self.batch_size = None  # torch's loader looks for it
        self._order = LengthOrder.of(
            self._lengths, max_tokens, buckets, max_samples, shuffle=shuffle, seed=seed
        )
        self._epoch = 0

    def __len__(self) -> int:
        """Count the batches of an epoch, over all ranks."""
        return self._order.length

    def __repr__(self) -> str:
        batches, samples = counted(len(self), "batch"), counted(len(self._lengths), "sample")
        buckets = counted(len(self._order.buckets) - 1, "bucket")
        return f"LengthBatches({batches} of {samples} in {buckets}, padding {self.padding:.1%})"

    @property
    def padding(self) -> float:
        """The share of padding among the tokens of the batches, in the first epoch."""
        tokens = padded = 0
        for batch in self._order.indices(0, np.arange(len(self))):
            lengths = self._lengths[batch]
            tokens += int(lengths.sum())
            padded += int(lengths.max()) * len(lengths)
        return 1 - tokens / max(padded, 1)

    def epoch_order(
        self,
        *,
        shuffle: bool,  # noqa: ARG002  a batch sampler decides it
        seed: int,
        step_size: int,  # noqa: ARG002
        world_size: int,  # noqa: ARG002
    ) -> LengthOrder:
        """Return the order that a loader reads."""
        return self._order.with_seed(seed)

    # For torch's own loader

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass over this sampler use an epoch."""
        check_int("epoch", epoch, least=0)
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._order.indices(self._epoch, np.arange(len(self))):
            yield batch.tolist()
        self._epoch += 1


@dataclass(frozen=True, eq=False)
class LengthOrder(Order):
    """Batches of similar lengths: each position is a batch, and its index an array of indices."""

    by_length: NDArray[np.int64]  # indices of samples, the shortest first
    buckets: NDArray[np.int64]  # where buckets begin in `by_length`, and the end
    batches: NDArray[np.int64]  # number of the first batch of each bucket, and of all
    shuffle: bool
    seed: int
    id: str = field(repr=False)
    _derived: Derived = field(default_factory=Derived, init=False, repr=False, compare=False)

    of_batches = True

    @property
    def length(self) -> int:  # type: ignore[override]
        return int(self.batches[-1])

    @classmethod
    def of(
        cls,
        lengths: NDArray[np.int64],
        max_tokens: int,
        buckets: int | None,
        max_samples: int | None,
        *,
        shuffle: bool,
        seed: int,
    ) -> LengthOrder:
        """Sort samples by length and cut them into buckets."""
        by_length = np.argsort(lengths, kind="stable")
        ordered = np.maximum(lengths[by_length], 1)
        edges = _edges(ordered, max_tokens, buckets)
        longest = ordered[edges[1:] - 1]
        capacity = max_tokens // longest
        if max_samples is not None:
            capacity = np.minimum(capacity, max_samples)
        counts = -(-np.diff(edges) // capacity)
        batches = np.concatenate([[0], np.cumsum(counts)])
        digest = hashlib.blake2b(lengths.astype("<i8").tobytes(), digest_size=8)
        digest.update(edges.astype("<i8").tobytes() + batches.astype("<i8").tobytes())
        kind = "shuffled" if shuffle else "in sequence"
        name = f"length-batches-1, {batches[-1]} batches {kind}, lengths {digest.hexdigest()}"
        return cls(by_length, edges, batches, shuffle, seed, name)

    def with_seed(self, seed: int) -> LengthOrder:
        return replace(self, seed=seed)

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> list[NDArray[np.int64]]:  # type: ignore[override]
        if not len(positions):
            return []
        numbers = positions
        if self.shuffle:
            numbers = self._shuffle(epoch, None)(positions)
        bucket = np.searchsorted(self.batches, numbers, side="right") - 1
        first, ends = self._places(bucket, numbers)
        sizes = ends - first
        stops = np.cumsum(sizes)
        places = np.arange(stops[-1]) + np.repeat(first - stops + sizes, sizes)
        of_bucket = np.repeat(bucket, sizes)
        if self.shuffle:
            by_bucket = np.argsort(of_bucket, kind="stable")
            present, starts = np.unique(of_bucket[by_bucket], return_index=True)
            for each, there in zip(present.tolist(), np.split(by_bucket, starts[1:]), strict=True):
                places[there] = self._shuffle(epoch, each)(places[there])
        found = self.by_length[self.buckets[of_bucket] + places]
        return np.split(found, stops[:-1])

    def _places(
        self, bucket: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where batches begin and end in their buckets, whose samples they share evenly."""
        samples = self.buckets[bucket + 1] - self.buckets[bucket]
        count = self.batches[bucket + 1] - self.batches[bucket]
        within = numbers - self.batches[bucket]
        return within * samples // count, (within + 1) * samples // count

    def _shuffle(self, epoch: int, bucket: int | None) -> Permutation:
        """Return the permutation of a bucket's samples; None: that of all batches."""
        of_epoch = self._derived.of(epoch, dict[Any, Permutation])
        found = of_epoch.get(bucket)
        if found is None:
            samples, key = self.length, key_as_int("batches", self.seed)
            if bucket is not None:
                samples = int(self.buckets[bucket + 1] - self.buckets[bucket])
                key = key_as_int("bucket", self.seed, bucket)
            found = of_epoch[bucket] = Permutation(samples, key, epoch)
        return found


def _edges(ordered: NDArray[np.int64], max_tokens: int, buckets: int | None) -> NDArray[np.int64]:
    """Cut sorted lengths into buckets; where each begins, and the end."""
    shortest, longest = float(ordered[0]), float(ordered[-1])
    if buckets is None:
        buckets = max(int(np.ceil(np.log(longest / shortest) / np.log(_RATIO))), 1)
    bounds = np.geomspace(shortest, longest, buckets + 1)[1:-1]
    cuts = np.unique(np.searchsorted(ordered, bounds, side="right"))
    edges = [0]
    for cut in cuts.tolist():
        if cut < len(ordered) and (cut - edges[-1]) * int(ordered[cut - 1]) >= max_tokens:
            edges.append(cut)
    return np.array([*edges, len(ordered)], dtype=np.int64)


def _checked_lengths(lengths: ArrayLike, max_tokens: int) -> NDArray[np.int64]:
    found = np.asarray(lengths)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        msg = (
            "lengths must be a non-empty list of ints, one for each sample, found "
            f"{found.dtype} of shape {found.shape}."
        )
        raise OptionTypeError(msg)
    if found.min() < 0:
        msg = f"lengths must not be negative, found {found.min()} at index {found.argmin()}."
        raise OptionError(msg)
    if found.max() > max_tokens:
        msg = (
            f"sample {found.argmax()} has {found.max():,} tokens, more than max_tokens="
            f"{max_tokens:,}. Raise it, or truncate samples and pass the lengths of these."
        )
        raise OptionError(msg)
    return found.astype(np.int64)
