"""Tracks: the shuffled order of data that lies in blocks.

The blocks are permuted and laid end to end as a tape. The tape is cut into K equal tracks, K a
power of two, which are read side by side: every K consecutive positions, a group, take one row of
each track. So neighbouring positions lie far apart in the data, while only about K blocks are in
use at a time::

    tape      |block 7|block 2 |block 9|block 0|block 5 |block 1|block 8|block 3|
    tracks    [------ 0 ------][------ 1 ------][------ 2 ------][----- 3 ------]
    group g     ^ + g            ^ + g            ^ + g            ^ + g

Within a group the tracks come in a scrambled order that is spread evenly: of every aligned run of
2^s positions, each of 2^s equal ranges of tracks has one (an Owen scramble of the van der Corput
sequence). A block is read from a random row on, and around; its rows are permuted inside pages of
a sixteenth of the block (at least 16 rows), so that a mapped file is read page by page. All of it
is a function of (seed, epoch, position).
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.law.keys import key_as_int, mix
from dataporter.law.orders import (
    NOTHING,
    UNUSED,
    Derived,
    Order,
    SequentialOrder,
    ShuffledOrder,
    Uses,
)
from dataporter.law.permutation import Permutation

_PAGES = 16  # of a block
_LEAST_PAGE = 16  # rows
_LEAST_TRACKS = 256
_MOST_TRACKS = 1 << 24
_BLOCKS_PER_TRACK = 8
_BUCKETS_PER_BLOCK = 2
# x ^= x * c with an even c changes each bit by lower ones only, and can be undone. Odd halves with
# well spread bits; what matters is tested: every group meets every track, in an even spread.
_SCRAMBLE = tuple(np.uint32(c) for c in (0x9E3779BA, 0x6C8E944E, 0xD1B54A32, 0x8CB92BA6))
_ROUNDS = 4
# Primes above every size of a page, hence without a common factor.
_FACTORS = np.array(
    [
        *(1_921_618_823, 1_325_203_133, 1_902_222_631, 1_240_430_531),
        *(1_282_972_393, 1_434_622_963, 1_296_086_039, 2_038_364_417),
        *(1_738_618_597, 1_574_827_253, 1_249_524_127, 1_522_057_349),
        *(2_030_748_089, 1_571_865_403, 1_392_751_567, 1_534_802_663),
    ],
    dtype=np.uint64,
)


def tracks_for(blocks: int, *, step_size: int, world_size: int) -> int:
    """Choose the number of tracks: enough for a step of all ranks, at most an eighth of the blocks.

    >>> tracks_for(20_000, step_size=512, world_size=8)
    1024
    >>> tracks_for(100, step_size=512, world_size=8)
    8
    """
    wanted = max(_LEAST_TRACKS, 2 * step_size, 8 * world_size)
    most = max(blocks // _BLOCKS_PER_TRACK, 1)
    return min(1 << (wanted - 1).bit_length(), 1 << (most.bit_length() - 1), _MOST_TRACKS)


class Spans(NamedTuple):
    """The blocks that samples of a view read, where some are made of several blocks."""

    ends: NDArray[np.int64]  # where those of each sample end in `blocks`; shape (samples,)
    blocks: NDArray[np.int64]
    home_ends: NDArray[np.int64]  # likewise of the samples that lie in each block together
    home_blocks: NDArray[np.int64]

    @classmethod
    def over(
        cls, rows: NDArray[np.int64], samples: NDArray[np.int64], blocks: NDArray[np.int64]
    ) -> Spans | None:
        """Make it from pairs, sorted by samples, of which `rows` lie in each block.

        None if all of them are read from the block that they lie in.

        >>> Spans.over(np.array([2, 1]), np.array([0, 0, 1, 2]), np.array([0, 1, 0, 1])).blocks
        array([0, 1, 0, 1])
        """
        home = np.repeat(np.arange(len(rows)), rows)
        if len(samples) == len(home) and np.array_equal(blocks, home):
            return None
        pairs = np.unique(home[samples] * len(rows) + blocks)
        of_home, found = np.divmod(pairs, len(rows))
        ends = np.cumsum(np.bincount(samples, minlength=len(home)))
        return cls(ends, blocks, np.cumsum(np.bincount(of_home, minlength=len(rows))), found)

    def of(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks that samples read: places in `samples`, and blocks."""
        return _listed(self.ends, self.blocks, samples)

    def spread(self, uses: Uses) -> Uses:
        """Return the uses of all blocks from which samples are read that lie in others."""
        places, blocks = _listed(self.home_ends, self.home_blocks, uses.blocks)
        return Uses(blocks, uses.first[places], uses.last[places])


def _listed(
    ends: NDArray[np.int64], values: NDArray[np.int64], numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the values of the lists with some numbers, each with its place in `numbers`."""
    first = np.where(numbers > 0, ends[numbers - 1], 0)
    counts = ends[numbers] - first
    places = np.repeat(np.arange(len(numbers)), counts)
    within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places, values[first[places] + within]


class LeafOrder(Order):
    """An order that reads the blocks of one leaf, and of none if `leaf` is None."""

    __slots__ = ()

    leaf: str | None

    @property
    def leaves(self) -> frozenset[str]:  # type: ignore[override]  # a constant elsewhere
        return frozenset() if self.leaf is None else frozenset({self.leaf})

    def reads(
        self, leaf: str, epoch: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if leaf != self.leaf or not len(positions):
            return NOTHING, NOTHING
        return self._reads(epoch, positions)

    def uses(self, leaf: str, epoch: int) -> Uses:
        return self._uses(epoch) if leaf == self.leaf else UNUSED

    @abstractmethod
    def _reads(
        self, epoch: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what `reads` does, for the leaf."""

    @abstractmethod
    def _uses(self, epoch: int) -> Uses:
        """Return what `uses` does, for the leaf."""


@dataclass(frozen=True, eq=False)
class BlockOrder(LeafOrder):
    """An order of data in blocks, or of a view that makes `rows` samples of each block."""

    rows: NDArray[np.int64] = field(kw_only=True)
    leaf: str = field(default="", kw_only=True)  # whose blocks they are
    # Where samples are made of several blocks.
    spans: Spans | None = field(default=None, kw_only=True, repr=False)

    def _reads(
        self, epoch: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self.spans is not None:
            return self.spans.of(self.indices(epoch, positions))
        return np.arange(len(positions)), self._blocks_at(epoch, positions)

    def _uses(self, epoch: int) -> Uses:
        uses = self._homes(epoch)
        return uses if self.spans is None else self.spans.spread(uses)

    def _blocks_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block that the sample at each position lies in."""
        return np.searchsorted(np.cumsum(self.rows), self.indices(epoch, positions), side="right")

    @abstractmethod
    def _homes(self, epoch: int) -> Uses:
        """Return the stretches in which samples are read that lie in each block."""


@dataclass(frozen=True, eq=False)
class TracksOrder(BlockOrder):
    """An order in which blocks that are read together are few, and samples well mixed.

    >>> order = TracksOrder(np.array([3, 0, 4]), tracks=2, seed=1)
    >>> sorted(order.indices(0, np.arange(7)).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """

    rows: NDArray[np.int64]  # of each block; given by its place here
    tracks: int
    seed: int = 0
    length: int = field(init=False)
    id: str = field(init=False, repr=False)
    _derived: Derived = field(default_factory=Derived, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", int(self.rows.sum()))
        digest = hashlib.blake2b(self.rows.astype("<i8").tobytes(), digest_size=4).hexdigest()
        # The first number rises if the order ever changes: old states must not match it.
        object.__setattr__(self, "id", f"tracks-1, {self.tracks} side by side, blocks {digest}")

    def with_seed(self, seed: int) -> TracksOrder:
        return replace(self, seed=seed)

    def resumed(self, saved_id: str) -> TracksOrder:
        """Take over the number of tracks of a saved run."""
        saved = re.match(r"tracks-1, (\d{1,9}) side by side", saved_id)
        tracks = int(saved[1]) if saved else 0
        is_power = 0 < tracks <= _MOST_TRACKS and tracks & (tracks - 1) == 0
        return replace(self, tracks=tracks) if is_power else self

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._tape(epoch).indices(positions)

    def deal(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._tape(epoch).tracks.dealt(positions)

    def dealt_between(
        self, epoch: int, start: int, stop: int, low: float, high: float
    ) -> tuple[int, NDArray[np.int64]]:
        return self._tape(epoch).tracks.dealt_between(start, stop, low, high)

    def _blocks_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._tape(epoch).blocks_at(positions)

    def _homes(self, epoch: int) -> Uses:
        return self._tape(epoch).uses

    def _tape(self, epoch: int) -> _Tape:
        make = functools.partial(_Tape, self.rows, self.tracks, self.seed, epoch)
        return self._derived.of(epoch, make)


@dataclass(frozen=True, eq=False)
class BlockAfterBlock(BlockOrder, SequentialOrder):
    """The order of the files, one block after the other.

    >>> BlockAfterBlock(7, rows=np.array([3, 0, 4])).uses("", 0).first.tolist()
    [0, 3]
    """

    def _homes(self, epoch: int) -> Uses:  # noqa: ARG002  the same in every epoch
        blocks = np.flatnonzero(self.rows)
        ends = np.cumsum(self.rows)[blocks]
        return Uses(blocks, ends - self.rows[blocks], ends - 1)


@dataclass(frozen=True, eq=False)
class ShuffledBlocks(BlockOrder, ShuffledOrder):
    """The global shuffle of data in blocks: any of them may be read at any position.

    >>> ShuffledBlocks(7, rows=np.array([3, 0, 4])).uses("", 0).last.tolist()
    [6, 6]
    """

    def _homes(self, epoch: int) -> Uses:  # noqa: ARG002  likewise
        return Uses.throughout(np.flatnonzero(self.rows), self.length)


class Tracks:
    """`length` places in a row, cut into `count` equal tracks that are read side by side."""

    def __init__(self, length: int, count: int, key: int) -> None:
        self._count, self._key = count, key
        self._groups, longer = divmod(length, count)  # whole groups; tracks with one more
        numbers = np.arange(count + 1, dtype=np.int64)
        self.starts = numbers * self._groups + numbers * longer // count
        self._longer = np.flatnonzero(np.diff(self.starts) > self._groups)
        self._track_of, self._turn_of = _scrambled(count)

    def of(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the track and the group of each position."""
        group = positions // self._count
        member = positions - group * self._count
        turn = (member + self._offsets(group)) & (self._count - 1)
        track = self._track_of[turn]
        in_last = np.flatnonzero(group == self._groups)  # the short group at the end
        if in_last.size:
            track[in_last] = self._longer[member[in_last]]
        return track, group

    def _offsets(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        return mix(self._key, groups).astype(np.uint32).astype(np.int64)

    def dealt(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the tracks as numbers in [0, 1): ranks that share a node share blocks."""
        return self.of(positions)[0] / self._count

    def dealt_between(
        self, start: int, stop: int, low: float, high: float
    ) -> tuple[int, NDArray[np.int64]]:
        """Find the positions in [start, stop) with numbers in [low, high); count lower ones.

        Only these are looked at, and a few more: an aligned run of 2^s positions has one in each of
        2^s ranges of tracks, and the range tells where in the run it is.
        """
        first, end = (min(max(math.ceil(at * self._count), 0), self._count) for at in (low, high))
        whole = min(stop, self._groups * self._count)  # the short group at the end comes after it
        runs = np.array([*_aligned_runs(start, whole, self._count)], dtype=np.int64).reshape(-1, 2)
        starts, sizes = runs[:, 0], runs[:, 1]
        widths = self._count // sizes  # of the ranges of tracks that have one position each
        lowest, highest = first // widths, -(-end // widths)
        run = np.repeat(np.arange(len(runs)), highest - lowest)
        nth = np.arange(len(run)) - np.repeat(np.cumsum(highest - lowest), highest - lowest)
        turns = self._turn_of[(nth + highest[run]) * widths[run]]
        offsets = self._offsets(starts // self._count)[run]
        positions = starts[run] + ((turns - offsets) & (sizes[run] - 1))
        tracks = self.of(positions)[0]
        below = int(lowest.sum()) + int(np.count_nonzero(tracks < first))
        found = [positions[(first <= tracks) & (tracks < end)]]
        if stop > whole:
            member = np.arange(max(start - whole, 0), stop - whole)
            tracks = self._longer[member]
            below += int(np.searchsorted(tracks, first))
            found.append(whole + member[(first <= tracks) & (tracks < end)])
        return below, np.sort(np.concatenate(found))

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place in the row that each position reads."""
        track, group = self.of(positions)
        return self.starts[track] + group


class _Tape:
    """The blocks of one epoch, laid end to end, and the tracks that it is cut into."""

    def __init__(self, rows: NDArray[np.int64], tracks: int, seed: int, epoch: int) -> None:
        filled = np.flatnonzero(rows)
        count = len(filled)
        shuffle = Permutation(count, key_as_int("blocks", seed), epoch)
        self.blocks = filled[shuffle(np.arange(count, dtype=np.int64))]
        first = np.cumsum(rows) - rows
        self._first = first[self.blocks]  # dataset index of a block's first row
        self._edges = np.zeros(count + 1, dtype=np.int64)  # where blocks begin on the tape
        np.cumsum(rows[self.blocks], out=self._edges[1:])
        self.length = int(self._edges[-1])
        self._count = tracks
        self.tracks = Tracks(self.length, tracks, key_as_int("groups", seed, epoch))
        self._row_key = key_as_int("rows", seed, epoch)
        # The first block that ends after the start of each bucket, to look blocks up from there.
        per_bucket = max(self.length // (_BUCKETS_PER_BLOCK * count), 1) if count else 1
        self._shift = per_bucket.bit_length() - 1
        ends = (self._edges[1:] + ((1 << self._shift) - 1)) >> self._shift
        buckets = (self.length >> self._shift) + 2
        self._buckets = np.cumsum(np.bincount(ends, minlength=buckets)).astype(np.int32)

    def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        at = self.tracks.places(positions)
        place = self._places(at)
        start = self._edges[place]
        at -= start
        rows = self._rows(place, at, self._edges[place + 1] - start)
        rows += self._first[place]
        return rows

    def blocks_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block that is read at each position."""
        return self.blocks[self._places(self.tracks.places(positions))]

    def _places(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the block, on the tape, that holds each row of it."""
        place: NDArray[np.int64] = self._buckets[at >> self._shift].astype(np.int64)
        place += self._edges[place + 1] <= at  # it is this block or, mostly, the next
        beyond = np.flatnonzero(self._edges[place + 1] <= at)
        if beyond.size:
            place[beyond] = np.searchsorted(self._edges, at[beyond], side="right") - 1
        return place

    def _rows(
        self, place: NDArray[np.int64], at: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the rows that come as number `at` of blocks of `rows` rows.

        A block is read from a row of its own on, and around; inside a page, rows are permuted.
        Without the first, blocks of equal size would all show their first rows at the same time.
        """
        keys = mix(self._row_key, place)
        turned = ((keys >> np.uint64(32)) * rows.astype(np.uint64) >> np.uint64(32)).astype(
            np.int64
        )
        turned += at
        turned -= np.where(turned >= rows, rows, 0)
        per_page = np.maximum((rows + (_PAGES - 1)) // _PAGES, _LEAST_PAGE)
        page = turned // per_page
        start = page * per_page
        sizes = np.minimum(per_page, rows - start)
        keys += page.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
        keys ^= keys >> np.uint64(32)
        keys *= np.uint64(0xBF58476D1CE4E5B9)
        start += _permuted(turned - start, sizes, keys)
        return start

    @functools.cached_property
    def uses(self) -> Uses:
        """The stretches in which blocks are read."""
        # Cut the tape where a block or a track begins: each piece is one stretch of one block.
        starts = self.tracks.starts
        cuts = np.union1d(self._edges[:-1], starts[:-1])
        cuts = cuts[cuts < self.length]
        track = np.searchsorted(starts, cuts, side="right") - 1
        place = np.searchsorted(self._edges, cuts, side="right") - 1
        ends = np.append(cuts[1:], self.length)
        first = (cuts - starts[track]) * self._count
        last = (ends - starts[track]) * self._count - 1
        return Uses(self.blocks[place], first, np.minimum(last, self.length - 1)).by_first()


def _aligned_runs(start: int, stop: int, longest: int) -> Iterator[tuple[int, int]]:
    """Cut [start, stop) into runs whose starts are multiples of their sizes, powers of two.

    >>> [*_aligned_runs(3, 17, 8)]
    [(3, 1), (4, 4), (8, 8), (16, 1)]
    """
    while start < stop:
        size = longest if start % longest == 0 else start & -start
        while size > stop - start:
            size //= 2
        yield start, size
        start += size


@functools.lru_cache(maxsize=8)
def _scrambled(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the track of each turn in a group, scrambled, and the turn of each track."""
    turns = np.arange(count, dtype=np.uint32)
    for factor in _SCRAMBLE:
        turns ^= turns * factor
    turns &= np.uint32(count - 1)
    reversals = np.zeros(1, dtype=np.int64)  # of the bits of numbers
    while len(reversals) < count:
        reversals = np.concatenate([2 * reversals, 2 * reversals + 1])
    tracks = reversals[turns]
    turn_of = np.empty_like(tracks)
    turn_of[tracks] = np.arange(count)
    return tracks, turn_of


def _permuted(
    numbers: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Permute [0, size) by a key, for each number its own; sizes are below 2**30.

    The numbers are multiplied and shifted modulo `size`. Then each round reflects [0, size) at a
    point of its own and moves some pairs, as their hashes say (the swap-or-not shuffle). All of it
    can be undone for any size, so nothing has to be walked as in a power of two.
    """
    wide = sizes.astype(np.uint64)
    start = numbers.astype(np.uint64)
    start *= _FACTORS[(keys & np.uint64(15)).astype(np.intp)]
    start += keys >> np.uint64(32)
    start %= wide
    x, size = start.astype(np.uint32), sizes.astype(np.uint32)
    for number in range(_ROUNDS):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + np.uint64(number)
        partner = ((keys >> np.uint64(32)) * wide >> np.uint64(32)).astype(np.uint32) - x
        # Below zero it has wrapped to a huge number, and adding the size wraps it back.
        np.minimum(partner, partner + size, out=partner)
        # Both numbers of a pair have this hash, so both move or neither does.
        hashed = np.maximum(x, partner)
        hashed ^= keys.astype(np.uint32)
        hashed *= np.uint32(0x9E3779B1)
        hashed ^= hashed >> np.uint32(15)
        hashed *= np.uint32(0x85EBCA77)
        np.copyto(x, partner, where=hashed >= np.uint32(1 << 31))
    return x.astype(np.int64)
