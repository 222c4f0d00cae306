"""Protocols for datasets: what one may offer beside a length and samples by index.

All of it is optional. A dataset offers something by having what one of these protocols declares,
and no other file asks a dataset of ours for names. The functions say what holds for one that does
not.

| | |
| --- | --- |
| its order, and further indices for it | `OrderedDataset`, `HasIndexSpace` |
| whole batches | `GathersBatches` |
| the blocks that it lies in, and their columns | `InBlocks`, `HasFlatColumns` |
| blocks that are fetched ahead | `Leaf`; `HasLeaves` for what is made of leaves |
| its identity, for states and kept results | `HasFingerprint`, `MadeFrom`, `HasResultsFolder` |
| what becomes of batches | `LeavesSamplesOut`, `ChoosesBatches` |
| what there is to say | `HasCounters`, `HasExplanation` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dataporter.law.orders import Order
from dataporter.law.plan import Plan

if TYPE_CHECKING:  # most loaders have no data in blocks
    from dataporter.law.tracks import Spans

# Orders and indices


class Asked(NamedTuple):
    """The arguments of `epoch_order`, for those who hand them on."""

    shuffle: bool
    seed: int
    step_size: int  # samples in one step of all ranks
    world_size: int


@runtime_checkable
class OrderedDataset(Protocol):
    """A map-style dataset that brings an order of its own.

    The order may map positions to any of the dataset's indices. It is asked for when a loader is
    built; `step_size` is the number of samples in one step of all ranks.
    """

    def __len__(self) -> int: ...

    def epoch_order(
        self, *, shuffle: bool, seed: int, step_size: int, world_size: int
    ) -> Order: ...


@runtime_checkable
class HasIndexSpace(Protocol):
    """A dataset whose order has further indices, for samples that no plain index has.

    Plain indices are those below the length; an epoch in sequence reads the same samples.
    """

    @property
    def index_space(self) -> int:
        """The number that all indices are below."""
        ...


def index_space(data: Any) -> int:
    """Return the number that all indices of a dataset are below: its length, unless it says."""
    return int(data.index_space if isinstance(data, HasIndexSpace) else len(data))


class Gather(Protocol):
    """A function that makes whole batches of a dataset, equal to the collation of its samples."""

    def __call__(self, indices: NDArray[np.int64], empty: Any, /) -> Any:
        """Return the batch of some indices, all of them at least 0; None if it cannot.

        Then the samples are fetched and collated. If `empty` is not None, tensors are best written
        into the memory that `empty(shape, dtype)` gives: that is the batch's own. Whatever lies
        elsewhere is copied. Views gather parts of a batch from each dataset, and join them.
        """
        ...


@runtime_checkable
class GathersBatches(Protocol):
    """A dataset that makes whole batches sooner than a collation of its samples."""

    def batch_gather(self) -> Gather | None:
        """Return what gathers batches. None if it would run users' code or cannot be done.

        It is asked for at the beginning of each pass.
        """
        ...


# Blocks


@runtime_checkable
class InBlocks(Protocol):
    """A dataset that lies in blocks, such as a `ShardedDataset`, or a view that keeps its blocks.

    Samples are numbered block by block.
    """

    @property
    def block_rows(self) -> NDArray[np.int64]:
        """The samples of each block; shape (blocks,)."""
        ...

    @property
    def leaf(self) -> str | None:
        """The name of the leaf whose blocks they are; None if it has none."""
        ...

    def order_of_view(
        self, rows: NDArray[np.int64], asked: Asked, spans: Spans | None = None
    ) -> Order:
        """Return the order of a view that makes `rows` samples of each block; shape (blocks,).

        Samples of a view are numbered block by block. `spans` says which are made of several.
        """
        ...


@runtime_checkable
class HasFlatColumns(Protocol):
    """A dataset in blocks that can show columns of lists as they lie there."""

    @property
    def has_flat_columns(self) -> bool:
        """False if samples are not what lies in the blocks, as after a transform."""
        ...

    def flat_lists(self, block: int, column: str) -> Any:
        """Return a column of a block: offsets of lists, and their numbers; None if it cannot."""
        ...


def has_flat_columns(data: Any) -> bool:
    """Return True if a dataset can show columns as they lie in its blocks."""
    return isinstance(data, HasFlatColumns) and data.has_flat_columns


# Reading ahead


@runtime_checkable
class Leaf(Protocol):
    """A dataset that really reads blocks, and may fetch them ahead.

    Orders that read it know its name (`Order.leaves`), and say which of its blocks they read when.
    """

    @property
    def leaf(self) -> str | None:
        """A name that no other dataset has; a copy in another process keeps it."""
        ...

    def announce(self, order: Order, epoch: int, start: int, stop: int, plan: Plan) -> None:
        """Take note that the ranks' steps up to position `stop` of an order are about to be read.

        Those before `start` have been delivered. `plan` says which positions are this rank's, and
        what follows. It must return at once.
        """


@runtime_checkable
class HasLeaves(Protocol):
    """A dataset that is made of leaves."""

    def leaves(self) -> Iterable[Leaf]:
        """Return the leaves; one may occur several times."""
        ...


def leaves_of(data: Any) -> list[Leaf]:
    """Return the leaves of a dataset, itself if it is one; each once."""
    found = [data] if isinstance(data, Leaf) else []
    if isinstance(data, HasLeaves):
        found = list(data.leaves())
    return list({id(leaf): leaf for leaf in found}.values())


# Identity


@runtime_checkable
class HasFingerprint(Protocol):
    """A dataset that knows a name of its contents."""

    def fingerprint(self) -> str:
        """Return a text that other contents do not have."""
        ...


def declares_fingerprint(data: Any) -> bool:
    """Return True if a dataset declares a fingerprint, as a method."""
    return isinstance(data, HasFingerprint) and callable(data.fingerprint)


@runtime_checkable
class MadeFrom(Protocol):
    """A dataset that knows what its samples are made from."""

    def made_from(self) -> tuple[Any, ...] | None:
        """Return the fields of `views.parts.Evidence`; None if not all of it is known."""
        ...


@runtime_checkable
class HasResultsFolder(Protocol):
    """A dataset with a folder of its own, in which results on it may be kept too."""

    @property
    def results_folder(self) -> Path | None:
        """The folder; None if there is none on this machine."""
        ...


def results_folder_of(data: Any) -> Path | None:
    """Return the folder of a dataset; None if it has none."""
    folder = data.results_folder if isinstance(data, HasResultsFolder) else None
    return folder if isinstance(folder, Path) else None


# Batches


@runtime_checkable
class LeavesSamplesOut(Protocol):
    """A dataset that may raise `LeftOutError`, so that batches may be shorter."""

    @property
    def leaves_samples_out(self) -> bool:
        """True if samples may be left out."""
        ...


@runtime_checkable
class ChoosesBatches(Protocol):
    """A dataset whose order may depend on the size of batches."""

    @property
    def chooses_batches(self) -> bool:
        """True if batches of another size would have other samples."""
        ...


def leaves_samples_out(data: Any) -> bool:
    """Return True if a dataset says that it may leave samples out."""
    return isinstance(data, LeavesSamplesOut) and bool(data.leaves_samples_out)


def chooses_batches(data: Any) -> bool:
    """Return True if a dataset says that batches of another size would have other samples."""
    return isinstance(data, ChoosesBatches) and bool(data.chooses_batches)


# Words and numbers


@runtime_checkable
class HasCounters(Protocol):
    """A dataset that counts what it does, such as the requests to a storage."""

    def stats(self) -> Mapping[str, Any]:
        """Return numbers by name. They rise, or are levels."""
        ...


def stats_of(data: Any) -> Callable[[], Any] | None:
    """Return the method by which a dataset gives its counters; None if it has none."""
    return data.stats if isinstance(data, HasCounters) and callable(data.stats) else None


@runtime_checkable
class HasExplanation(Protocol):
    """A dataset with something to say of itself in `loader.explain()`."""

    def explanation_rows(self) -> Sequence[tuple[str, str]]:
        """Return rows: a heading, and the words under it."""
        ...


def explanation_rows_of(data: Any) -> tuple[tuple[str, str], ...]:
    """Return what a dataset has to say of itself."""
    return tuple(data.explanation_rows()) if isinstance(data, HasExplanation) else ()
