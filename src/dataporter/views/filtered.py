"""`where`: the samples of a dataset that pass a predicate, evaluated ahead or as they are read."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataporter.arguments import check_flag, check_int
from dataporter.errors import LeftOutError, OptionError, OptionTypeError, PredicateWarning
from dataporter.fetch.vectorised import gather_for
from dataporter.law import Order, OrderedDataset
from dataporter.law.datasets import (
    Asked,
    Gather,
    InBlocks,
    Leaf,
    explanation_rows_of,
    index_space,
    leaves_of,
)
from dataporter.law.tracks import Spans
from dataporter.layout import counted
from dataporter.sources.fingerprint import dataset_fingerprint
from dataporter.sources.tally import counters_of
from dataporter.system.files import user_folder
from dataporter.user_warnings import warn_user
from dataporter.views.bitmap import Bitmap
from dataporter.views.code_hash import UnknownCodeError, code_hash
from dataporter.views.judging import Judged, Place, Predicate, kept_samples
from dataporter.views.kept import digest_of
from dataporter.views.parts import (
    Evidence,
    evidence_of,
    joined_evidence,
    order_of,
    plain_order,
    read,
)


def where(
    data: Any,
    predicate: Predicate,
    name: str | None = None,
    *,
    version: str | int | None = None,
    lazy: bool = False,
    folder: str | PathLike[str] | None = None,
    num_workers: int | None = None,
) -> Filtered | LazilyFiltered:
    """Return the samples of a dataset for which `predicate(sample)` is True.

    The predicate is evaluated once for all samples, by several processes. A run that is killed goes
    on where it was. The verdicts are kept by the data (its fingerprint, with size and time of its
    files), the name and all code that can change them. Where some of that cannot be known, the
    predicate is evaluated each time.

    >>> threes = where(range(100), lambda number: number % 3 == 0, name="threes", num_workers=0)
    >>> len(threes), threes[5]
    (34, 15)

    - `name`: a name for the predicate; by default that of the function.
    - `version`: a number or text that stands for all code that the predicate and the data use.
      Pass another one whenever that changes. By default the code itself is looked at.
    - `lazy`: True evaluates nothing ahead. The view has all samples; those that do not pass are
      left out of their batches, which are shorter then. Positions count as if they were there.
    - `folder`: a folder for the verdicts, by default one in the user's cache folder.
    - `num_workers`: the processes that evaluate, by default one a core. 0 uses this one.
    """
    name = _checked_name(name, predicate)
    check_flag("lazy", lazy)
    check_int("num_workers", num_workers, least=0, optional=True)
    if folder is not None and not isinstance(folder, str | PathLike):
        msg = f"folder must be a folder, found {type(folder).__name__} {folder!r}."
        raise OptionTypeError(msg)
    if version is not None and (isinstance(version, bool) or not isinstance(version, str | int)):
        msg = f"version must be a number or a text, found {type(version).__name__} {version!r}."
        raise OptionTypeError(msg)
    length = _length(data)
    if lazy:
        return LazilyFiltered(data, predicate, name)
    if isinstance(data, OrderedDataset) and not isinstance(data, InBlocks):
        msg = (
            f"{type(data).__name__} has an order of its own, which a filter would change. Filter "
            "the datasets that it is made of, or pass lazy=True."
        )
        raise OptionError(msg)
    if length == 0:
        msg = f"the data has no samples, so the filter {name!r} keeps none."
        raise OptionError(msg)
    fingerprint = dataset_fingerprint(data)
    place = _place(data, predicate, name, version, None if folder is None else Path(folder))
    kept = kept_samples(data, predicate, name, place=place, workers=num_workers)
    if len(kept) == 0:
        msg = (
            f"the filter {name!r} keeps none of {counted(length, 'sample')}. Check the predicate: "
            "it returned False for all of them."
        )
        raise OptionError(msg)
    return Filtered(data, kept, name, fingerprint)


class Filtered:
    """The samples of a dataset that pass a predicate. Use `where` to make one."""

    def __init__(self, data: Any, kept: Bitmap, name: str, fingerprint: str | None) -> None:
        self.data = data
        self.name = name
        self._kept = kept
        self._of = fingerprint
        if isinstance(data, InBlocks):
            edges = np.concatenate([[0], np.cumsum(data.block_rows)])
            self._rows = np.diff(kept.rank(edges))
        else:
            self._rows = np.array([len(kept)])

    def __repr__(self) -> str:
        return f"where({self.name!r}: {self._share()} of {_shown(self.data)})"

    def _share(self) -> str:
        return f"{len(self):,} of {counted(self._kept.length, 'sample')}"

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: SupportsIndex) -> Any:
        number = _checked_index(index, len(self))
        return self.data[int(self._kept.select(np.array([number]))[0])]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Read many samples at once."""
        return read(self.data, self.indices_in_data(indices).tolist())

    def batch_gather(self) -> Gather | None:
        """Return what gathers batches, if those of the data can be gathered."""
        gather = gather_for(self.data)
        if gather is None:
            return None
        return lambda indices, empty: gather(self.indices_in_data(indices), empty)

    def indices_in_data(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices that samples of this view have in the data."""
        numbers = np.asarray(indices, dtype=np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            numbers = np.array([_checked_index(each, len(self)) for each in numbers.tolist()])
        return self._kept.select(numbers)

    def stats(self) -> dict[str, Any]:
        """Return the counters of the data, if it keeps some."""
        return counters_of(self.data)

    def fingerprint(self) -> str:
        """Return the fingerprint of the data, with the name and a hash of the verdicts."""
        verdicts = digest_of(self._kept.bits)
        return ", ".join(filter(None, [self._of, f"where {self.name} {verdicts}"]))

    def made_from(self) -> Evidence | None:
        """Return what the samples are made from."""
        verdicts = digest_of(self._kept.bits)
        return joined_evidence([self.data], f"where {self.name} {verdicts}")

    def where(self, predicate: Predicate, name: str | None = None, **options: Any) -> Any:
        """Return those samples of this view that pass another predicate: see `views.where`."""
        return where(self, predicate, name, **options)

    @property
    def block_rows(self) -> NDArray[np.int64]:
        """The samples that are kept of each block; data that is not in files is one block."""
        return self._rows

    def epoch_order(self, *, shuffle: bool, seed: int, step_size: int, world_size: int) -> Order:
        """Return the order that a loader reads."""
        return self.order_of_view(self._rows, Asked(shuffle, seed, step_size, world_size))

    def order_of_view(
        self, rows: NDArray[np.int64], asked: Asked, spans: Spans | None = None
    ) -> Order:
        """Return the order of a view: see `dataporter.law.datasets.InBlocks`."""
        if isinstance(self.data, InBlocks):
            return self.data.order_of_view(rows, asked, spans)
        return plain_order(int(rows.sum()), asked)

    def leaves(self) -> list[Leaf]:
        """Return the leaves of the data."""
        return leaves_of(self.data)

    @property
    def leaf(self) -> str | None:
        """The name of the leaf whose blocks these are."""
        return self.data.leaf if isinstance(self.data, InBlocks) else None

    def explanation_rows(self) -> list[tuple[str, str]]:
        """Say what is kept."""
        percent = 100 * len(self) / self._kept.length
        words = f"{self.name!r} keeps {self._share()} ({percent:.1f} %)"
        return [*explanation_rows_of(self.data), ("filter", words)]


class LazilyFiltered:
    """A dataset whose samples leave holes if they do not pass. Use `where(…, lazy=True)`."""

    leaves_samples_out = True  # for those who compare batches sample by sample

    def __init__(self, data: Any, predicate: Predicate, name: str) -> None:
        self.data = data
        self.name = name
        self._judged = Judged(data, predicate, name)

    def __repr__(self) -> str:
        return (
            f"where({self.name!r}, lazy=True: up to {counted(len(self), 'sample')} of "
            f"{_shown(self.data)}; those that do not pass leave holes)"
        )

    def __len__(self) -> int:
        """Count all samples, those too that do not pass."""
        return len(self.data)

    @property
    def index_space(self) -> int:
        """The number that all indices are below: that of the data."""
        return index_space(self.data)

    def __getitem__(self, index: SupportsIndex) -> Any:
        number = _checked_index(index, len(self), self.index_space)
        sample = self.data[number]
        if self._judged.passes(number, sample):
            return sample
        msg = f"sample {number} does not pass the filter {self.name!r}, so it is left out."
        raise LeftOutError(msg)

    def stats(self) -> dict[str, Any]:
        """Return the counters of the data, if it keeps some."""
        return counters_of(self.data)

    def fingerprint(self) -> str:
        """Return the fingerprint of the data, with the name.

        Not with the code: no position depends on it.
        """
        named = f"where {self.name}, lazily"
        return ", ".join(filter(None, [dataset_fingerprint(self.data), named]))

    def epoch_order(self, *, shuffle: bool, seed: int, step_size: int, world_size: int) -> Order:
        """Return the order of the data, in which samples that do not pass have positions too."""
        return order_of(self.data, len(self), Asked(shuffle, seed, step_size, world_size))

    def leaves(self) -> list[Leaf]:
        """Return the leaves of the data."""
        return leaves_of(self.data)

    def explanation_rows(self) -> list[tuple[str, str]]:
        """Say what becomes of samples that do not pass."""
        words = (
            f"{self.name!r} is evaluated as samples are read: those that do not pass are counted, "
            "and left out of their batches, which are shorter then"
        )
        return [*explanation_rows_of(self.data), ("filter", words)]


def _shown(data: Any) -> str:
    """Name a dataset: ours show themselves, and others may take long to."""
    return repr(data) if isinstance(data, OrderedDataset) else type(data).__name__


# Checks


def _checked_name(name: Any, predicate: Any) -> str:
    if not callable(predicate):
        msg = (
            "predicate must be a function of a sample, found "
            f"{type(predicate).__name__} {predicate!r:.80}."
        )
        raise OptionTypeError(msg)
    if name is None:
        name = getattr(predicate, "__name__", "<none>")
        if name.startswith("<"):
            msg = 'this predicate has no name of its own. Pass one, such as name="long".'
            raise OptionError(msg)
    if not isinstance(name, str) or not name:
        msg = f'name must be a text, such as "long", found {type(name).__name__} {name!r}.'
        raise OptionTypeError(msg)
    return name


def _length(data: Any) -> int:
    try:
        return len(data)
    except (TypeError, NotImplementedError) as error:
        msg = (
            f"the data has no length ({type(data).__name__}), so its samples cannot be filtered "
            "by index. Give it __len__ and __getitem__, or filter inside of its __iter__."
        )
        raise OptionTypeError(msg) from error


def _checked_index(index: SupportsIndex, length: int, space: int | None = None) -> int:
    """Return an index from 0 on. Those from `length` to `space` are of samples in an order."""
    try:
        number = operator.index(index)
    except TypeError as error:
        msg = f"a sample's index must be an int, found {type(index).__name__} {index!r}."
        raise OptionTypeError(msg) from error
    if not -length <= number < (length if space is None else space):
        msg = f"the index {number} is out of range: the view has {length:,} samples."
        raise IndexError(msg)
    return number + length if number < 0 else number


def _place(
    data: Any, predicate: Predicate, name: str, version: str | int | None, folder: Path | None
) -> Place | None:
    """Return the place of the verdicts; None if they may not be kept."""
    evidence = evidence_of(data)
    if evidence is None:
        if folder is None:
            return None
        msg = (
            f"verdicts on {type(data).__name__} cannot be kept in a folder: nothing surely tells "
            "this data from other data of the same length. Give the dataset a method fingerprint() "
            "that returns a text, or leave folder= out to evaluate the predicate each time."
        )
        raise OptionError(msg)
    if folder is None:
        cache = user_folder()
        if cache is None:
            msg = "there is no home folder to keep verdicts in. Pass folder= a folder."
            raise OptionError(msg)
        folder = cache / "verdicts"
    try:
        # The user's word stands for all code.
        makes_samples, code = (
            (evidence.code_hash(), code_hash(predicate)) if version is None else (version, "named")
        )
    except UnknownCodeError as error:
        warn_user(
            f"the filter {name!r} is evaluated anew in every process, and its verdicts are not "
            f"kept: {error}. Pass version=1, and another version whenever code changes that the "
            "predicate or the data uses.",
            PredicateWarning,
        )
        return None
    known = json.dumps([evidence.data, len(data), name, makes_samples])
    key = hashlib.blake2b(known.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return Place(folder.absolute(), key, code)
