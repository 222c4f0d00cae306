"""The orders a run can have: position -> dataset index, for every epoch.

An order is immutable and holds no position; `indices` may be asked for any epoch and
any positions, in any sequence, and always answers the same. Its `id` names everything
beside the seed that decides the answer, so two orders with equal id and seed are equal.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataporter.errors import OptionError
from dataporter.law.keys import key_as_int, uniform
from dataporter.law.permutation import MAX_LENGTH, Permutation
from dataporter.law.ranges import joined

NOTHING: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
_DERIVED = 4  # epochs of which an order keeps what it has computed
Value = TypeVar("Value")


class Derived:
    """Values that an order has computed of its epochs, such as a permutation: those used last.

    They are kept with the order, and are no part of it: copies begin without, and none is compared.

    >>> derived = Derived()
    >>> derived.of(3, lambda: "made once"), derived.of(3, lambda: "made again")
    ('made once', 'made once')
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def of(self, epoch: Any, make: Callable[[], Value]) -> Value:
        """Return the value of an epoch, made when it is asked for first."""
        try:
            value: Value = self._values[epoch]
        except KeyError:
            value = make()
            # Replaced as a whole: other threads read it meanwhile.
            last = list(self._values.items())[1 - _DERIVED :]
            self._values = {**dict(last), epoch: value}
        return value

    def __reduce__(self) -> tuple[type[Derived], tuple[()]]:
        return Derived, ()


class Uses(NamedTuple):
    """The stretches of an epoch in which blocks are read; a block may have several."""

    blocks: NDArray[np.int64]
    first: NDArray[np.int64]  # the first position that may read the block; they ascend
    last: NDArray[np.int64]

    def by_first(self) -> Uses:
        """Return the same stretches, those first that begin first."""
        order = np.argsort(self.first, kind="stable")
        return Uses(*(column[order] for column in self))

    def joined(self) -> Uses:
        """Return the same, sorted by block, with stretches of a block that overlap as one."""
        return Uses(*joined(*self))

    @classmethod
    def throughout(cls, blocks: NDArray[np.int64], length: int) -> Uses:
        """Return the uses of blocks any of which may be read at any position."""
        return cls(blocks, np.zeros_like(blocks), np.full_like(blocks, length - 1))


UNUSED = Uses(NOTHING, NOTHING, NOTHING)


class Order(ABC):
    """A mapping from position to dataset index, for every epoch.

    Subclass it for an order of your own, and give it to a loader by a dataset that has
    `epoch_order` (`OrderedDataset`). It has to be immutable, and to pickle.
    """

    __slots__ = ()

    length: int  # positions in one epoch
    seed: int
    id: str  # names the order and its parameters, without the seed
    of_batches = False  # whether a position is a batch, and its index an array of indices
    names_data = False  # whether the id also names the data, and so says which may follow which

    @abstractmethod
    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the dataset indices at `positions`, which are in [0, length); (k,) to (k,)."""

    @abstractmethod
    def with_seed(self, seed: int) -> Order:
        """Return the same order under another seed."""

    def resumed(self, saved_id: str) -> Order:  # noqa: ARG002  most have no parameters
        """Return this order with the parameters in the id of a saved run, as far as it can."""
        return self

    def continued(self, epoch: int, position: int) -> Order:  # noqa: ARG002  most do not change
        """Return the order with which a resumed run goes on from a position.

        What it gives before that position is what the saved run had there.
        """
        return self

    def deal(
        self,
        epoch: int,  # noqa: ARG002
        positions: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.float64] | None:
        """Return numbers in [0, 1) by which the ranks share the positions of a step.

        The lowest go to the first rank. With None, positions are shared by stride.
        """
        return None

    def dealt_between(
        self, epoch: int, start: int, stop: int, low: float, high: float
    ) -> tuple[int, NDArray[np.int64]] | None:
        """Find the positions in [start, stop) whose numbers of `deal` are in [low, high).

        Return with them, in ascending order, how many positions there have a lower number. None if
        that takes as long as dealing all of them: they are sorted then, at every step.
        """
        del epoch, start, stop, low, high  # most orders cannot tell
        return None

    # What it is read from

    leaves: frozenset[str] = frozenset()  # those leaves of its dataset whose blocks it knows

    def reads(
        self,
        leaf: str,  # noqa: ARG002  most know no leaf
        epoch: int,  # noqa: ARG002
        positions: NDArray[np.int64],  # noqa: ARG002
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks of a leaf that positions read: places in `positions`, and blocks.

        Shapes (reads,). Places ascend; a position may read several blocks of the leaf, or none.
        """
        return NOTHING, NOTHING

    def uses(self, leaf: str, epoch: int) -> Uses:
        """Return the stretches of an epoch in which each block of a leaf is read."""
        if leaf not in self.leaves:
            return UNUSED
        # Each position is looked at here. Orders of many positions know a shorter way.
        places, blocks = self.reads(leaf, epoch, np.arange(self.length, dtype=np.int64))
        found, first = np.unique(blocks, return_index=True)
        _, last = np.unique(blocks[::-1], return_index=True)
        return Uses(found, places[first], places[::-1][last]).by_first()

    def reason_removed(self, epoch: int, positions: NDArray[np.int64]) -> str | None:  # noqa: ARG002
        """Say why samples of the past cannot be read any more; None if all can."""
        return None

    def explained(self, epoch: int, position: int) -> list[tuple[str, str]]:  # noqa: ARG002
        """Say under headings what there is to know of a run that stands at a position."""
        return []


@dataclass(frozen=True, slots=True)
class SequentialOrder(Order):
    """0, 1, 2, … in every epoch."""

    length: int
    seed: int = 0

    id = "sequential"

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002  the same in every epoch
        return positions

    def with_seed(self, seed: int) -> SequentialOrder:
        return replace(self, seed=seed)


@dataclass(frozen=True, slots=True)
class ShuffledOrder(Order):
    """Another permutation of [0, length) in every epoch.

    >>> order = ShuffledOrder(5, seed=1)
    >>> sorted(order.indices(0, np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    length: int
    seed: int = 0

    # The number rises if the permutation ever changes: old states must not match it.
    id = "shuffled-1"
    _derived: Derived = field(default_factory=Derived, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.length > MAX_LENGTH:
            msg = f"a shuffled order holds at most 2**62 samples, found {self.length}."
            raise OptionError(msg)

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        make = partial(Permutation, self.length, self.seed, epoch)
        return self._derived.of(epoch, make)(positions)

    def with_seed(self, seed: int) -> ShuffledOrder:
        return replace(self, seed=seed)


@dataclass(frozen=True, slots=True, eq=False)
class WeightedOrder(Order):
    """Indices drawn in proportion to their weights.

    With replacement, each position draws by itself: its own uniform number is looked up
    in the cumulated weights. Without, every index gets the waiting time -log(u) / weight
    and the shortest waits come first, which is drawing one after another in proportion
    to what is left (Efraimidis and Spirakis). That one sorts once an epoch.

    >>> order = WeightedOrder([0.0, 1.0, 3.0], length=4, replacement=True, seed=3)
    >>> 0 in order.indices(0, np.arange(4))
    False
    """

    weights: NDArray[np.float64]
    length: int
    replacement: bool
    seed: int
    id: str = field(repr=False)
    _cumulated: NDArray[np.float64] = field(repr=False)
    _derived: Derived = field(default_factory=Derived, init=False, repr=False, compare=False)

    def __init__(
        self, weights: ArrayLike, *, length: int, replacement: bool = True, seed: int = 0
    ) -> None:
        checked = _checked_weights(weights, length, replacement=replacement)
        digest = hashlib.blake2b(checked.tobytes(), digest_size=8).hexdigest()
        kind = "with" if replacement else "without"
        cumulated = np.cumsum(checked / checked.max())
        for name, value in (
            ("weights", checked),
            ("length", length),
            ("replacement", replacement),
            ("seed", seed),
            ("id", f"weighted-1 {kind} replacement, {length} draws, weights {digest}"),
            ("_cumulated", cumulated / cumulated[-1]),
            ("_derived", Derived()),
        ):
            object.__setattr__(self, name, value)

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.replacement:
            drawn = uniform(key_as_int("weighted", self.seed, epoch), positions)
            # side="right" skips cells of width zero: a weight of 0 is never drawn.
            return np.searchsorted(self._cumulated, drawn, side="right").astype(np.int64)
        return self._derived.of(epoch, lambda: _waiting_order(self, epoch))[positions]

    def with_seed(self, seed: int) -> WeightedOrder:
        copy = object.__new__(WeightedOrder)
        for name in self.__slots__:
            object.__setattr__(copy, name, getattr(self, name))
        object.__setattr__(copy, "seed", seed)
        object.__setattr__(copy, "_derived", Derived())
        return copy


def _waiting_order(order: WeightedOrder, epoch: int) -> NDArray[np.int64]:
    counters = np.arange(len(order.weights), dtype=np.int64)
    drawn = uniform(key_as_int("weighted", order.seed, epoch), counters)
    with np.errstate(divide="ignore"):  # a weight of 0 waits forever
        # Compared as logarithms: the quotient itself may be too large for a float.
        waits = np.log(-np.log(drawn)) - np.log(order.weights)
    return np.argsort(waits, kind="stable")[: order.length].astype(np.int64)


def _checked_weights(weights: ArrayLike, length: int, *, replacement: bool) -> NDArray[np.float64]:
    try:
        checked = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"weights must be a sequence of numbers, found {type(weights).__name__}: {error}"
        raise OptionError(msg) from error
    if checked.ndim != 1 or checked.size == 0:
        msg = f"weights must be a non-empty sequence of numbers, found shape {checked.shape}."
        raise OptionError(msg)
    wrong = np.flatnonzero(~np.isfinite(checked) | (checked < 0))
    if wrong.size:
        first = int(wrong[0])
        msg = f"weights must be finite and not negative, found {checked[first]} at index {first}."
        raise OptionError(msg)
    drawable = int(np.count_nonzero(checked))
    if not drawable:
        msg = "weights must not all be zero: nothing could be drawn."
        raise OptionError(msg)
    if not replacement and length > drawable:
        msg = (
            f"{length} samples were asked for without replacement, "
            f"but only {drawable} of {checked.size} weights are above zero. "
            "Ask for fewer samples, or draw with replacement=True."
        )
        raise OptionError(msg)
    return checked
