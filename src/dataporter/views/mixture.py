"""`Mixture`: several datasets as one, each with its share of every prefix."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.errors import OptionError, OptionTypeError
from dataporter.fetch.collate import Empty
from dataporter.fetch.fetcher import getitems_of
from dataporter.fetch.vectorised import gather_for, joined_rows
from dataporter.law.datasets import (
    Asked,
    Gather,
    Leaf,
    chooses_batches,
    index_space,
    leaves_of,
    leaves_samples_out,
)
from dataporter.layout import counted
from dataporter.sources.fingerprint import dataset_fingerprint
from dataporter.sources.tally import summed_counters
from dataporter.views.mixture_order import MixtureOrder, Part, seeded, shifts
from dataporter.views.parts import order_of, read
from dataporter.views.segments import Segment, as_integers, read_whole

Weights = Mapping[str, float]
_EPOCHS = ("longest", "shortest", "all")


class Mixture:
    """Several datasets as one: samples of all parts in turn, in proportion to their weights.

    Every prefix of a run has each part within one sample of its share. A part has its own order
    and its own epochs: one that is through comes again, in another shuffle.

    >>> web, code = [f"web {n}" for n in range(70)], [f"code {n}" for n in range(10)]
    >>> mixture = Mixture({"web": (web, 0.7), "code": (code, 0.3)})
    >>> mixture.counts(100)
    {'web': 70, 'code': 30}
    >>> from dataporter import ResumableDataLoader
    >>> loader = ResumableDataLoader(mixture, batch_size=10, shuffle=True, seed=1)
    >>> sum(text.startswith("web") for text in next(iter(loader)))
    7

    - `parts`: a dataset and its weight by name. A dataset is a list, a map-style dataset, a
      `ShardedDataset` or another view.
    - `epoch`: where an epoch of the mixture ends: once the part with the most samples has been
      read ("longest"), once the first part has been read ("shortest"), once all have been read
      ("all"), or after so many samples. A part that a schedule draws no more before it has been
      read whole is not waited for.
    - `schedule`: other weights from positions on, counted from the start of the run:
      `[(0, {"web": 0.7, "code": 0.3}), (1_000_000, {"web": 0.5, "code": 0.5})]`. The first
      entry takes the place of the weights in `parts`.
    - `batches_from`: "all", or "one": then each batch has samples of one part.
    - `name_as`: a key under which each sample, which has to be a dict, gets the name of its part.

    Weights may change at a resume, and parts may be added: the state keeps the weights that were.
    A part may be removed with `load_state_dict(state, strict=False)`; when it is added again, it
    goes on where it was. The sequence in which parts are listed does not matter.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[Any, float]],
        *,
        epoch: int | Literal["longest", "shortest", "all"] = "longest",
        schedule: Sequence[tuple[int, Weights]] | None = None,
        batches_from: Literal["all", "one"] = "all",
        name_as: str | None = None,
    ) -> None:
        self._datasets, weights = _checked_parts(parts)
        self._lengths = {name: _length(name, data) for name, data in self._datasets.items()}
        self._further = {
            name: index_space(data) - self._lengths[name] for name, data in self._datasets.items()
        }
        samples, further = list(self._lengths.values()), list(self._further.values())
        plain, beyond = shifts(samples, further)
        # The ranges of indices, by their ends: of each part's samples, then of its further indices.
        self._bounds: list[int] = np.cumsum(samples + further).tolist()
        self._names = [*self._datasets] * 2
        self._places = [*zip(self._names, [*plain.tolist(), *beyond.tolist()], strict=True)]
        self._pairs = [(self._datasets[name], shift) for name, shift in self._places]
        self._schedule = _checked_schedule(schedule, weights)
        if epoch not in _EPOCHS and (isinstance(epoch, bool) or not isinstance(epoch, int)):
            msg = f"epoch must be 'longest', 'shortest', 'all' or a number, found {epoch!r}."
            raise OptionError(msg)
        if isinstance(epoch, int) and epoch < 1:
            msg = f"epoch must be at least 1 sample, found {epoch}."
            raise OptionError(msg)
        self._epoch = epoch
        if batches_from not in {"all", "one"}:
            msg = f"batches_from must be 'all' or 'one', found {batches_from!r}."
            raise OptionError(msg)
        self._batches_from = batches_from
        if name_as is not None and not isinstance(name_as, str):
            msg = f"name_as must be a key, found {type(name_as).__name__} {name_as!r}."
            raise OptionTypeError(msg)
        self._name_as = name_as
        reads_many = any(getitems_of(data) is not None for data in self._datasets.values())
        self._are_plain = name_as is None and not reads_many

    def __repr__(self) -> str:
        weights = self._schedule[0][1]
        turns = _turns(weights)  # rounded, as they are used
        total = sum(turns.values())
        shares = ", ".join(f"{name} {100 * turns[name] / total:.4g} %" for name in weights)
        return f"Mixture({counted(len(self), 'sample')}: {shares})"

    def __len__(self) -> int:
        """Count the samples of all parts. An epoch may have more or fewer: see `epoch`."""
        return sum(self._lengths.values())

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of all parts, one part after the other."""
        return (self[index] for index in range(len(self)))

    @property
    def index_space(self) -> int:
        """The number that all indices are below.

        Those below the length are of the parts' samples, one part after the other. Those beyond are
        for the orders of parts that have further indices.
        """
        return self._bounds[-1]

    @property
    def leaves_samples_out(self) -> bool:
        """True if a part does so: batches may be shorter."""
        return any(map(leaves_samples_out, self._datasets.values()))

    @property
    def chooses_batches(self) -> bool:
        """True if batches of another size would have other samples, here or in a part."""
        return self._batches_from == "one" or any(map(chooses_batches, self._datasets.values()))

    def __getitem__(self, index: int) -> Any:
        (sample,) = self.__getitems__([index])
        return sample

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read many samples at once, those of one part together if it can read many."""
        if not len(indices):
            return []
        bounds, length = self._bounds, len(self)
        low, high = min(indices), max(indices)
        if low < -length or high >= bounds[-1]:
            wrong = high if high >= bounds[-1] else low
            msg = f"the index {wrong} is out of range: the mixture has {length:,} samples."
            raise IndexError(msg)
        if low < 0:
            indices = [index + length if index < 0 else index for index in indices]
        if self._are_plain:
            pairs = self._pairs
            numbers = [bisect_right(bounds, index) for index in indices]
            return [
                pairs[number][0][index - pairs[number][1]]
                for number, index in zip(numbers, indices, strict=True)
            ]
        of_parts: dict[int, list[int]] = {}
        for at, index in enumerate(indices):
            of_parts.setdefault(bisect_right(bounds, index), []).append(at)
        found: list[Any] = [None] * len(indices)
        for number, there in of_parts.items():
            name, first = self._places[number]
            samples = read(self._datasets[name], [indices[at] - first for at in there])
            for at, sample in zip(there, samples, strict=True):
                found[at] = sample if self._name_as is None else self._named(sample, name)
        return found

    def batch_gather(self) -> Gather | None:
        """Return what gathers batches; None if a part cannot be gathered."""
        if self._name_as is not None:
            return None
        shifts = np.array([shift for _, shift in self._places])
        return gather_of_parts([*self._datasets.values()], np.array(self._bounds), shifts)

    def _named(self, sample: Any, name: str) -> dict[Any, Any]:
        if not isinstance(sample, dict):
            msg = (
                f"name_as={self._name_as!r} needs samples that are dicts, found "
                f"{type(sample).__name__} in part {name!r}."
            )
            raise OptionTypeError(msg)
        return {**sample, self._name_as: name}

    def counts(self, samples: int) -> dict[str, int]:
        """Count the samples of each part among the first samples of a run."""
        order = self.epoch_order(shuffle=False, seed=0, step_size=1, world_size=1)
        return order.counts(0, samples)

    def stats(self) -> dict[str, Any]:
        """Return the counters of all parts that keep some, together."""
        return summed_counters(self._datasets.values())

    def leaves(self) -> list[Leaf]:
        """Return the leaves of all parts."""
        return [leaf for data in self._datasets.values() for leaf in leaves_of(data)]

    def fingerprint(self) -> str:
        """Return the names of the parts. Their data is named by the order."""
        return f"mixture of {', '.join(self._datasets)}"

    def epoch_order(
        self, *, shuffle: bool, seed: int, step_size: int, world_size: int
    ) -> MixtureOrder:
        """Return the order that a loader reads."""
        asked = Asked(shuffle, 0, step_size, world_size)  # parts are given seeds of their own
        parts = {
            name: Part(
                order_of(data, self._lengths[name], asked),
                self._lengths[name],
                dataset_fingerprint(data),
                self._further[name],
            )
            for name, data in self._datasets.items()
        }
        group = step_size // world_size if self._batches_from == "one" else 1
        segments = [Segment(start, _turns(weights), group) for start, weights in self._schedule]
        length = self._samples_of_epoch(segments, parts)
        return MixtureOrder(seeded(parts, seed), tuple(segments), length, seed)

    def _samples_of_epoch(self, segments: Sequence[Segment], parts: Mapping[str, Part]) -> int:
        if isinstance(self._epoch, int):
            return self._epoch
        lengths = {name: part.order.length for name, part in parts.items()}
        ends = {name: read_whole(segments, name, length) for name, length in lengths.items()}
        # One that the schedule draws no more before it was read whole is not waited for.
        reached = {name: end for name, end in ends.items() if end is not None}
        if self._epoch == "shortest":
            return max(math.floor(min(reached.values())), 1)
        if self._epoch == "longest":
            most = max(lengths[name] for name in reached)
            reached = {name: end for name, end in reached.items() if lengths[name] == most}
        return math.ceil(max(reached.values()))


def _turns(weights: Weights) -> dict[str, int]:
    """Return weights as integers. Their sequence decides ties: by name, however they are listed."""
    names = sorted(weights)
    return dict(zip(names, as_integers([weights[name] for name in names]), strict=True))


# Checks


def _checked_parts(parts: Any) -> tuple[dict[str, Any], dict[str, float]]:
    if not isinstance(parts, Mapping) or not parts:
        msg = (
            'parts must be a dict such as {"web": (web, 0.7), "code": (code, 0.3)}, found '
            f"{type(parts).__name__} {parts!r:.80}."
        )
        raise OptionTypeError(msg)
    datasets, weights = {}, {}
    for name, part in parts.items():
        if not isinstance(name, str) or not isinstance(part, tuple) or len(part) != 2:  # noqa: PLR2004  a pair
            msg = (
                f"a part is a name with a dataset and its weight, such as "
                f'"web": (web, 0.7), found {name!r}: {type(part).__name__}.'
            )
            raise OptionTypeError(msg)
        datasets[name], weights[name] = part
    return datasets, _checked_weights(weights)


def _checked_weights(weights: Any) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        msg = f"weights must be a dict of numbers by part, found {weights!r:.80}."
        raise OptionTypeError(msg)
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float | np.number):
            msg = f"the weight of part {name!r} must be a number, found {weight!r}."
            raise OptionTypeError(msg)
        if not math.isfinite(weight) or weight <= 0:
            msg = (
                f"the weight of part {name!r} must be above zero, found {weight}. "
                "Leave a part out that is not to be read."
            )
            raise OptionError(msg)
    return {
        name: weight.item() if isinstance(weight, np.number) else weight
        for name, weight in weights.items()
    }


def _checked_schedule(
    schedule: Any, weights: dict[str, float]
) -> list[tuple[int, dict[str, float]]]:
    if schedule is None:
        return [(0, weights)]
    entries: list[tuple[int, dict[str, float]]] = []
    for start, each in schedule:
        if isinstance(start, bool) or not isinstance(start, int):
            msg = f"a position of the schedule must be an int, found {start!r}."
            raise OptionTypeError(msg)
        found = _checked_weights(each)
        unknown = sorted(set(found) - set(weights))
        if unknown or not found:
            msg = f"the schedule has weights of {unknown}, and the parts are {sorted(weights)}."
            raise OptionError(msg)
        entries.append((start, {name: found[name] for name in weights if name in found}))
    starts = [start for start, _ in entries]
    if not starts or starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        msg = f"a schedule must begin at position 0 and have rising positions, found {starts}."
        raise OptionError(msg)
    return entries


def _length(name: str, data: Any) -> int:
    try:
        length = len(data)
    except (TypeError, NotImplementedError) as error:
        msg = (
            f"part {name!r} has no length ({type(data).__name__}), so it has no order to resume "
            "in. Give it __len__ and __getitem__."
        )
        raise OptionTypeError(msg) from error
    if length == 0:
        msg = f"part {name!r} is empty. Leave it out."
        raise OptionError(msg)
    return length


# Batches of all parts


def gather_of_parts(
    parts: Sequence[Any], bounds: NDArray[np.int64], shifts: NDArray[np.int64]
) -> Gather | None:
    """Return what gathers batches of several datasets; None if one of them cannot be gathered.

    `bounds` are the ends of ranges of indices, which belong to each part in turn, `shifts` what is
    subtracted from the indices of each range. If batches of the parts differ in more than the
    number of rows, nothing is gathered from then on.
    """
    found = [gather_for(part) for part in parts]
    gathers = [each for each in found if each is not None]
    if len(gathers) < len(parts):
        return None
    # The part and the shift of each range, and of indices that are out of range.
    part_of = np.append(np.arange(len(bounds)) % len(parts), len(parts))
    shift_of = np.append(shifts, 0)
    are_alike = True

    def gather(indices: NDArray[np.int64], empty: Empty | None) -> Any:
        nonlocal are_alike
        ranges = bounds.searchsorted(indices, "right")
        part = part_of[ranges]
        stops = np.bincount(part).cumsum().tolist()
        if not are_alike or len(stops) > len(gathers):
            return None
        by_part = part.argsort(kind="stable")
        own = (indices - shift_of[ranges])[by_part]
        batches, start = [], 0
        for gather_part, stop in zip(gathers, stops, strict=False):  # up to the last one
            if stop - start == len(own):
                return gather_part(own, empty)
            if start < stop:
                batches.append(gather_part(own[start:stop], None))
            start = stop
        batch = _joined(batches, by_part, empty)
        are_alike = batch is not None
        return batch

    return gather


def _joined(batches: Sequence[Any], places: NDArray[np.int64], empty: Empty | None) -> Any:
    """Join batches, whose rows have places in that order; None if they are not alike."""
    first = batches[0]
    kind = type(first)
    if len(set(map(type, batches))) > 1:
        return None
    if kind is torch.Tensor:
        return joined_rows(batches, places, empty)
    if kind is dict:
        if any(list(each) != list(first) for each in batches):
            return None
        named = {name: _joined([each[name] for each in batches], places, empty) for name in first}
        return None if any(each is None for each in named.values()) else named
    if (kind is list or kind is tuple) and len(set(map(len, batches))) == 1:
        columns = [_joined(each, places, empty) for each in zip(*batches, strict=True)]
        return None if any(each is None for each in columns) else kind(columns)
    return None
