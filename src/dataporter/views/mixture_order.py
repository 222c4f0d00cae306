"""The order of a mixture: each position has a part, and a position in that part's own epochs."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order, Uses
from dataporter.law.keys import key_as_int
from dataporter.law.orders import NOTHING, UNUSED, Derived
from dataporter.views.segments import Segment, Segments, continued

_NAME = "mixture-1"  # the number rises if the order ever changes
_GOLDEN = (math.sqrt(5) - 1) / 2


class Part(NamedTuple):
    """One part of a mixture."""

    order: Order
    samples: int  # of its dataset: the indices below are theirs
    fingerprint: str | None = None
    further: int = 0  # indices from there on, for samples that only the order reads

    @property
    def named_by(self) -> str | None:
        """The fingerprint, unless the order names the data itself: that may have more now."""
        return None if self.order.names_data else self.fingerprint

    @property
    def described(self) -> list[Any]:
        """The part's order and data, as the name of a mixture's order has them."""
        return [self.order.id, self.order.length, self.named_by]


@dataclass(frozen=True, eq=False)
class MixtureOrder(Order):
    """Samples of several parts in turn, by their weights. Each part goes on with its own epochs."""

    parts: Mapping[str, Part]
    segments: tuple[Segment, ...]
    length: int
    seed: int = 0
    wanted: tuple[Segment, ...] = ()  # the weights from now on, if a saved run had others
    # Parts that a saved run had lost, as its name describes them; None if it does not.
    removed: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(init=False, repr=False)
    _uses: Derived = field(default_factory=Derived, init=False, repr=False)

    names_data = True

    def __post_init__(self) -> None:
        drawn = {name for segment in self.segments for name in segment.turns}
        described = {
            "epoch": self.length,
            "weights": [[each.start, dict(each.turns), each.group] for each in self.segments],
            "parts": {
                name: part.described
                for name, part in sorted(self.parts.items())
                if name in drawn and name not in self.removed
            },
        }
        if known := {name: each for name, each in sorted(self.removed.items()) if each}:
            described["removed"] = known
        object.__setattr__(self, "id", f"{_NAME} {json.dumps(described)}")

    # Where a position lies

    @cached_property
    def _names(self) -> list[str]:
        """The names of all parts, those last that are left from a saved run."""
        drawn = {name for segment in self.segments for name in segment.turns}
        return [*self.parts, *sorted(drawn - set(self.parts))]

    @cached_property
    def _places(self) -> Segments:
        return Segments(self.segments, self._names, self.length)

    @cached_property
    def _shifts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        parts = self.parts.values()
        return shifts([part.samples for part in parts], [part.further for part in parts])

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array([part.order.length for part in self.parts.values()], dtype=np.int64)

    def counts(self, epoch: int, position: int) -> dict[str, int]:
        """Count the samples of each part that come before a position, since the run began."""
        counts = self._places.counts(epoch * self.length + position)
        return dict(zip(self._names, counts.tolist(), strict=True))

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        found = np.empty_like(positions)
        plain, beyond = self._shifts
        for number, there, part, (own_epoch, own) in self._drawn(epoch, positions):
            indices = part.order.indices(own_epoch, own)
            shift = plain[number]
            if part.further:
                shift = np.where(indices < part.samples, shift, beyond[number])
            found[there] = indices + shift
        return found

    def deal(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return numbers by which every rank has its share of every part.

        If a batch is of one part, the ranks take the batches one after the other.
        """
        if any(segment.group > 1 for segment in self.segments):
            return positions / self.length
        numbers = np.empty(len(positions))
        for _, there, part, (own_epoch, own) in self._drawn(epoch, positions):
            dealt = part.order.deal(own_epoch, own)
            numbers[there] = own * _GOLDEN % 1 if dealt is None else dealt
        return numbers

    def _drawn(
        self, epoch: int, positions: NDArray[np.int64], wanted: NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[int, NDArray[np.int64], Part, tuple[int, NDArray[np.int64]]]]:
        """Yield, for each part and each of its epochs, where it is drawn and its own positions.

        Only parts that have positions there are looked at, and of these those that are wanted.

        Where a part was drawn that is gone since, others stand in: the first positions of an epoch
        may be asked for once more, to fill up its last step.
        """
        numbers, draws = self._places.places(positions + epoch * self.length)
        count = len(self.parts)
        gone = numbers >= count
        if gone.any():
            by_name = np.argsort(list(self.parts))
            numbers = np.where(gone, by_name[draws % count], numbers)
        there = None
        if wanted is not None:
            there = np.flatnonzero(wanted[numbers])
            numbers, draws = numbers[there], draws[there]
        if not len(numbers):
            return
        # Small numbers are sorted by their digits, in one pass or two.
        by_part = numbers.astype(np.min_scalar_type(count)).argsort(kind="stable")
        draws, by_part = draws[by_part], by_part if there is None else there[by_part]
        counts = np.bincount(numbers)
        present = np.flatnonzero(counts)
        stops = counts[present].cumsum()
        starts = stops - counts[present]
        lengths = self._lengths[present]
        first = np.minimum.reduceat(draws, starts) // lengths
        last = np.maximum.reduceat(draws, starts) // lengths
        parts = [*self.parts.values()]
        columns = (present, starts, stops, lengths, first, last)
        for number, start, stop, length, low, high in zip(
            *(each.tolist() for each in columns), strict=True
        ):
            places, own = by_part[start:stop], draws[start:stop]
            if low == high:
                yield number, places, parts[number], (low, own - low * length)
                continue
            own_epochs, own = np.divmod(own, length)
            for own_epoch in range(low, high + 1):
                there = own_epochs == own_epoch
                yield number, places[there], parts[number], (own_epoch, own[there])

    # Runs

    def with_seed(self, seed: int) -> MixtureOrder:
        return replace(self, parts=seeded(self.parts, seed), seed=seed)

    def resumed(self, saved_id: str) -> MixtureOrder:
        """Take over the weights so far and the length of an epoch, as far as the parts are here."""
        saved = _parsed(saved_id)
        if saved is None:
            return self
        drawn = {name for _, turns, _ in saved["weights"] for name in turns}
        removed = dict.fromkeys(drawn - set(saved["parts"]), None) | saved.get("removed", {})
        known = {name: each for name, each in {**saved["parts"], **removed}.items() if each}
        parts = {
            name: part._replace(order=part.order.resumed(known[name][0])) if name in known else part
            for name, part in self.parts.items()
        }
        # One that is back has to be what it was. One that is missing now is remembered.
        removed = {
            name: each
            for name, each in removed.items()
            if name not in parts or each in (None, parts[name].described)
        } | {name: each for name, each in saved["parts"].items() if name not in parts}
        return replace(
            self,
            parts=parts,
            segments=tuple(Segment(*each) for each in saved["weights"]),
            length=saved["epoch"],
            wanted=self.wanted or self.segments,
            removed=removed,
        )

    def continued(self, epoch: int, position: int) -> MixtureOrder:
        """Return the order that has the weights of this run from a position on."""
        if not self.wanted:
            return self
        now = epoch * self.length + position
        segments = tuple(continued(self.segments, self.wanted, now))
        drawn = self.counts(epoch, position)
        parts = {
            name: part._replace(order=part.order.continued(*divmod(drawn[name], part.order.length)))
            for name, part in self.parts.items()
        }
        removed = {name: each for name, each in self.removed.items() if name not in parts}
        return replace(self, parts=parts, segments=segments, wanted=(), removed=removed)

    # What it is read from

    @cached_property
    def leaves(self) -> frozenset[str]:  # type: ignore[override]  # a constant elsewhere
        return frozenset().union(*(part.order.leaves for part in self.parts.values()))

    def reads(
        self, leaf: str, epoch: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks that the parts made of a leaf read; other parts are not asked."""
        found = [(NOTHING, NOTHING)]
        wanted = np.array([leaf in part.order.leaves for part in self.parts.values()])
        for _, there, part, (own_epoch, own) in self._drawn(epoch, positions, wanted):
            places, blocks = part.order.reads(leaf, own_epoch, own)
            found.append((there[places], blocks))
        places, blocks = map(np.concatenate, zip(*found, strict=True))
        by_place = np.argsort(places, kind="stable")
        return places[by_place], blocks[by_place]

    def uses(self, leaf: str, epoch: int) -> Uses:
        return self._uses.of((leaf, epoch), lambda: self._joined_uses(leaf, epoch))

    def _joined_uses(self, leaf: str, epoch: int) -> Uses:
        """Return the uses of parts in all of their epochs that this epoch draws from."""
        parts = enumerate(self.parts.values())
        found = [UNUSED]  # a part may have no turn in an epoch
        for number, part in parts:
            if leaf in part.order.leaves:
                found += self._uses_of_part(number, part.order, leaf, epoch)
        return Uses(*map(np.concatenate, zip(*found, strict=True))).by_first()

    def _uses_of_part(self, number: int, order: Order, leaf: str, epoch: int) -> Iterator[Uses]:
        begin = epoch * self.length
        end = begin + self.length
        first, last = (int(self._places.counts(at)[number]) for at in (begin, end))
        for own_epoch in range(first // order.length, -(-last // order.length)):
            blocks, *spans = order.uses(leaf, own_epoch)
            at = own_epoch * order.length
            starts, stops = (self._places.positions_of(number, at + draws) for draws in spans)
            within = (stops >= begin) & (starts < end)
            starts, stops = (
                np.clip(span[within] - begin, 0, self.length - 1) for span in (starts, stops)
            )
            yield Uses(blocks[within], starts, stops)

    # Words

    def reason_removed(self, epoch: int, positions: NDArray[np.int64]) -> str | None:
        numbers, _ = self._places.places(positions + epoch * self.length)
        is_gone = numbers >= len(self.parts)
        if is_gone.any():
            name, at = self._names[numbers[is_gone][0]], positions[is_gone][0]
            return (
                f"position {at:,} of epoch {epoch} was a sample of part {name!r}, which was "
                "removed from the mixture since. Choose other positions."
            )
        reasons = (
            part.order.reason_removed(*own) for _, _, part, own in self._drawn(epoch, positions)
        )
        return next((reason for reason in reasons if reason is not None), None)

    def explained(self, epoch: int, position: int) -> list[tuple[str, str]]:
        before = self.counts(epoch, position)
        total = max(sum(before.values()), 1)
        now = epoch * self.length + position
        current = [each for each in self.segments if each.start <= now][-1]
        period = sum(current.turns.values())
        lines = []
        for name, count in before.items():
            share = f"{100 * current.turns.get(name, 0) / period:.1f} %"
            part = self.parts.get(name)
            passed = "" if part is None else f", {count / part.order.length:.2f} epochs of its own"
            lines.append(f"{name} {share}: {count:,} so far ({100 * count / total:.1f} %{passed})")
        rows = [("parts", "; ".join(lines))]
        later = [each for each in self.segments if each.start > now]
        if later:
            shares = [
                f"from {each.start:,} on "
                + ", ".join(
                    f"{name} {100 * each.turns[name] / sum(each.turns.values()):.1f} %"
                    for name in self._names
                    if name in each.turns
                )
                for each in later
            ]
            rows.append(("later", "; ".join(shares)))
        return rows


def shifts(
    samples: Sequence[int], further: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers to add to a part's own indices: to those of samples, to further ones.

    A mixture numbers the samples of its parts one part after the other, then all further indices.

    >>> [each.tolist() for each in shifts([3, 2], [0, 10])]
    [[0, 3], [2, 3]]
    """
    own, more = np.array(samples, dtype=np.int64), np.array(further, dtype=np.int64)
    return np.cumsum(own) - own, own.sum() + np.cumsum(more) - more - own


def seeded(parts: Mapping[str, Part], seed: int) -> dict[str, Part]:
    """Give the order of each part a seed of its own."""
    return {
        name: part._replace(order=part.order.with_seed(key_as_int("part", seed, name)))
        for name, part in parts.items()
    }


def _parsed(saved_id: str) -> dict[str, Any] | None:
    """Read the name of a mixture's order; None if it is none, or damaged."""
    name, _, described = saved_id.partition(" ")
    if name != _NAME:
        return None
    try:
        saved: dict[str, Any] = json.loads(described)
        if not _is_whole(saved):
            return None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return None
    return saved


def _is_whole(saved: Mapping[str, Any]) -> bool:
    """Return True if the name of an order has all that it should; it may also raise."""
    weights: Sequence[Any] = saved["weights"]
    starts = [start for start, _, _ in weights]
    numbers = [saved["epoch"], *starts]
    for _, turns, group in weights:
        numbers += [group, *turns.values()]
        if group < 1 or sum(turns.values()) < 1:
            return False
    is_rising = starts[0] == 0 and all(a < b for a, b in itertools.pairwise(starts))
    described = [*saved["parts"].values(), *saved.get("removed", {}).values()]
    is_named = all(isinstance(part[0], str) for part in described)
    return is_rising and is_named and saved["epoch"] > 0 and all(type(n) is int for n in numbers)
