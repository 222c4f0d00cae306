"""Windows of equal length over the tokens of an epoch's documents, laid end to end; their order.

An epoch has a tape of blocks, and a block one of documents. A window is a stretch of that tape. Its
index says all that is needed to cut it: the number of the window, and a key that chooses the orders
of blocks and documents, another one in each epoch of a seed::

    index = key * windows + window         key 0: blocks and documents as they are stored

So any process cuts any window from its index and the lengths of the documents. The order goes from
the start to the end of an epoch's tape, or in tracks. The documents of data without blocks are laid
on the tape themselves. A pool has the tapes of the blocks that were read from lately, as one, so
that one search serves a batch.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Permutation, Uses
from dataporter.law.keys import key_as_int
from dataporter.law.orders import Derived
from dataporter.law.tracks import LeafOrder, Tracks

# Orders of an epoch to choose from. All epochs of a run have different ones, up to so many.
KEYS = (1 << 20) - 1
AS_STORED = 0  # the key of the order in which things are stored
_MOST = 1 << 22  # documents in a pool; they take 24 bytes each
_FIRST = 1 << 12
_END = np.iinfo(np.int64).max


class Pieces(NamedTuple):
    """Things, or parts of them, of which several stretches consist, one stretch after the other."""

    numbers: NDArray[np.int64]  # of the things; shape (pieces,)
    origins: NDArray[np.int64]  # the tokens that are stored before each thing
    starts: NDArray[np.int64]  # first tokens
    stops: NDArray[np.int64]  # the tokens after the last ones
    counts: NDArray[np.int64]  # pieces of each stretch; shape (stretches,)

    def each(self) -> list[list[tuple[int, int, int]]]:
        """Return the pieces of each stretch: number, first token, the token after the last one."""
        pieces = list(
            zip(self.numbers.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)
        )
        ends = np.cumsum(self.counts)
        bounds = zip((ends - self.counts).tolist(), ends.tolist(), strict=True)
        return [pieces[begin:end] for begin, end in bounds]


class Tape:
    """Things end to end, as stored or permuted by a key; those of length 0 are left out.

    >>> Tape(np.array([3, 0, 4]), AS_STORED).cut(np.array([2, 5]), np.array([5, 7])).each()
    [[(0, 2, 3), (2, 0, 2)], [(2, 2, 4)]]
    """

    def __init__(self, lengths: NDArray[np.integer], key: int) -> None:
        numbers = np.arange(len(lengths), dtype=np.int64)
        if key != AS_STORED:
            numbers = Permutation(len(lengths), seed=key, epoch=0)(numbers)
        self.numbers = numbers[lengths[numbers] > 0]
        own = lengths[self.numbers]
        self.origins = (np.cumsum(lengths, dtype=np.int64) - lengths)[self.numbers]
        self.edges = np.zeros(len(own) + 1, dtype=np.int64)  # where things begin on the tape
        np.cumsum(own, dtype=np.int64, out=self.edges[1:])

    def cut(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Pieces:
        """Return the pieces of stretches of the tape, none of which is empty."""
        return cut(self.numbers, self.origins, self.edges, starts, stops)


def cut(
    numbers: NDArray[np.int64],
    origins: NDArray[np.int64],
    edges: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> Pieces:
    """Cut stretches, none of them empty, from things that begin at `edges`."""
    first = edges.searchsorted(starts, "right")
    first -= 1
    counts = edges.searchsorted(stops, "left")
    counts -= first
    places = ragged(first, counts)
    begins = edges[places]
    piece_starts = starts.repeat(counts)
    piece_starts -= begins
    np.maximum(piece_starts, 0, out=piece_starts)
    piece_stops = np.minimum(stops.repeat(counts), edges[places + 1])
    piece_stops -= begins
    return Pieces(numbers[places], origins[places], piece_starts, piece_stops, counts)


def ragged(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `counts` numbers from each of `firsts` on, one row after the other.

    >>> ragged(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    ends = counts.cumsum()
    shifts = firsts - ends
    shifts += counts
    numbers: NDArray[np.int64] = shifts.repeat(counts)
    numbers += np.arange(len(numbers))
    return numbers


class TapePool:
    """Tapes by key and block.

    `make` makes one, and says which document is its number 0, and which token that begins with.
    """

    def __init__(self, make: Callable[[int, int], tuple[Tape, int, int]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._clear(_FIRST)

    def _clear(self, capacity: int) -> None:
        self._places: dict[tuple[int, int], int] = {}  # where blocks begin
        self._edges = np.full(capacity, _END)
        self._numbers = np.zeros(capacity, dtype=np.int64)
        self._origins = np.zeros(capacity, dtype=np.int64)
        self._used = 0
        self._next = 0  # the place where another block may begin

    def cut(
        self,
        key: int,
        blocks: NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> Pieces:
        """Return the pieces of stretches, each of the block that stands beside it."""
        wanted = [(key, block) for block in blocks.tolist()]
        with self._lock:
            missing = [each for each in dict.fromkeys(wanted) if each not in self._places]
            if missing and not self._add(missing):
                self._clear(_FIRST)
                self._add(list(dict.fromkeys(wanted)), needed=True)
            places = np.array([self._places[each] for each in wanted], dtype=np.int64)
            starts, stops = starts + places, stops + places
            return cut(self._numbers, self._origins, self._edges, starts, stops)

    def _add(self, wanted: list[tuple[int, int]], *, needed: bool = False) -> bool:
        """Add the tapes of blocks; return False if there is no room for them."""
        made = [(each, *self._make(*each)) for each in wanted]
        used = self._used + sum(len(tape.edges) for _, tape, _, _ in made)
        if used > _MOST and not needed:
            return False
        if used >= len(self._edges):
            self._grow(2 * used)
        for each, tape, first, origin in made:
            there = slice(self._used, self._used + len(tape.edges))
            self._edges[there] = tape.edges + self._next
            self._numbers[there][:-1] = tape.numbers + first
            self._origins[there][:-1] = tape.origins + origin
            self._places[each] = self._next
            self._used, self._next = there.stop, self._next + int(tape.edges[-1]) + 1
        return True

    def _grow(self, capacity: int) -> None:
        used = self._used
        for name, unused in (("_edges", _END), ("_numbers", 0), ("_origins", 0)):
            larger = np.full(capacity, unused, dtype=np.int64)
            larger[:used] = getattr(self, name)[:used]
            setattr(self, name, larger)


def key_of(seed: int, epoch: int) -> int:
    """Return the key of the orders in an epoch, from 1 to KEYS.

    >>> len({key_of(7, epoch) for epoch in range(1000)})
    1000
    """
    number = np.array([epoch % KEYS], dtype=np.int64)
    return int(Permutation(KEYS, key_as_int("packed", seed), 0)(number)[0]) + 1


def tape_of_blocks(tokens: NDArray[np.integer], key: int) -> Tape:
    """Lay blocks of so many tokens end to end."""
    return Tape(tokens, key if key == AS_STORED else key_as_int("blocks of tokens", key))


class Windows:
    """The windows of documents with these lengths.

    `bounds` are the first documents of the blocks, and the number of all; None if each document is
    a block. With `pads`, the rest at the end of an epoch is a window too.

    >>> windows = Windows(np.array([3, 0, 4], np.int32), None, length=5, pads=True)
    >>> windows.pieces(np.array([0, 1])).each()
    [[(0, 0, 3), (2, 0, 2)], [(2, 2, 4)]]
    """

    def __init__(
        self,
        lengths: NDArray[np.int32],
        bounds: NDArray[np.int64] | None,
        *,
        length: int,
        pads: bool,
    ) -> None:
        self._lengths, self.bounds = lengths, bounds
        self.length = length
        self._pads = pads
        self.tokens = lengths if bounds is None else sums(lengths, bounds)  # of each block
        self._begins = np.cumsum(self.tokens, dtype=np.int64) - self.tokens
        self.total = int(self.tokens.sum(dtype=np.int64))
        self.count = -(-self.total // length) if pads else self.total // length
        self._prepare()

    def _prepare(self) -> None:
        self._tape = functools.lru_cache(maxsize=2)(self._make_tape)
        self._documents = TapePool(self._make_documents)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tape": None, "_documents": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    @property
    def space(self) -> int:
        """The number that all indices are below."""
        return self.count * (KEYS + 1)

    def pieces(self, indices: NDArray[np.int64]) -> Pieces:
        """Return the documents of which windows consist, and which of their tokens."""
        key = int(indices[0]) // self.count
        numbers = indices - key * self.count
        if numbers.min() >= 0 and numbers.max() < self.count:
            return self._pieces(key, numbers)
        # The end of one epoch and the start of the next, in a mixture.
        keys, numbers = np.divmod(indices, self.count)
        each = [self._pieces(int(key), numbers[[at]]) for at, key in enumerate(keys)]
        return Pieces(*(np.concatenate(columns) for columns in zip(*each, strict=True)))

    def _pieces(self, key: int, numbers: NDArray[np.int64]) -> Pieces:
        starts = numbers * self.length
        blocks = self._tape(key).cut(starts, np.minimum(starts + self.length, self.total))
        if self.bounds is None:
            return blocks
        found = self._documents.cut(key, blocks.numbers, blocks.starts, blocks.stops)
        if len(blocks.numbers) == len(numbers):  # each window lies in one block
            return found
        first = blocks.counts.cumsum() - blocks.counts
        return found._replace(counts=np.add.reduceat(found.counts, first))

    def _make_tape(self, key: int) -> Tape:
        return tape_of_blocks(self.tokens, key)

    def _make_documents(self, key: int, block: int) -> tuple[Tape, int, int]:
        """Lay the documents of a block end to end; return its first document and token too."""
        bounds: Any = self.bounds
        lengths = self._lengths[bounds[block] : bounds[block + 1]]
        own = key if key == AS_STORED else key_as_int("documents", key, block)
        return Tape(lengths, own), int(bounds[block]), int(self._begins[block])


def sums(lengths: NDArray[np.int32], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up the lengths between bounds; shape (bounds - 1,)."""
    found = np.zeros(len(bounds) - 1, dtype=np.int64)
    filled = np.flatnonzero(np.diff(bounds))
    if filled.size:
        found[filled] = np.add.reduceat(lengths, bounds[filled], dtype=np.int64)
    return found


_NAME = "windows-1"  # the number rises if the order ever changes
_AS_STORED = f"{_NAME}, as stored"


@dataclass(frozen=True, slots=True, eq=False)
class WindowOrder(LeafOrder):
    """Each window of an epoch once.

    With one track, the windows of an epoch come in the order of the tape. With several, the tape is
    cut into tracks that are read side by side, so that neighbouring positions lie in other blocks.

    >>> order = WindowOrder(np.array([30, 20]), 10, 5, tracks=2, shuffles=True)
    >>> sorted((order.indices(0, np.arange(5)) % 5).tolist())
    [0, 1, 2, 3, 4]
    """

    tokens: NDArray[np.integer]  # of each block
    window: int  # tokens
    length: int
    tracks: int
    shuffles: bool
    seed: int = 0
    leaf: str | None = None  # whose blocks are read, if there are any
    # Where blocks of the leaf end, in documents, if each document is a block here.
    ends: NDArray[np.int64] | None = None
    id: str = field(init=False, repr=False)
    _derived: Derived = field(default_factory=Derived, init=False, repr=False, compare=False)
    _tapes: Derived = field(default_factory=Derived, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = f"{_NAME}, {self.tracks} side by side" if self.shuffles else _AS_STORED
        object.__setattr__(self, "id", name)

    def with_seed(self, seed: int) -> WindowOrder:
        return replace(self, seed=seed)

    def resumed(self, saved_id: str) -> WindowOrder:
        """Take over the number of tracks of a saved run."""
        saved = re.fullmatch(rf"{_NAME}, (\d{{1,8}}) side by side", saved_id)
        tracks = int(saved[1]) if saved else 0
        is_power = tracks > 0 and tracks & (tracks - 1) == 0
        return replace(self, tracks=tracks) if is_power and self.shuffles else self

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self.shuffles:
            return positions
        windows = positions if self.tracks == 1 else self._epoch(epoch).tracks.places(positions)
        return windows + self._epoch(epoch).key * self.length

    def deal(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.float64] | None:
        return None if self.tracks == 1 else self._epoch(epoch).tracks.dealt(positions)

    def dealt_between(
        self, epoch: int, start: int, stop: int, low: float, high: float
    ) -> tuple[int, NDArray[np.int64]]:
        return self._epoch(epoch).tracks.dealt_between(start, stop, low, high)

    def _reads(
        self, epoch: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        key, tracks = self._epoch(epoch)
        tape = self.tape(key)
        starts = tracks.places(positions) * self.window
        pieces = tape.cut(starts, np.minimum(starts + self.window, tape.edges[-1]))
        blocks = pieces.numbers
        if self.ends is not None:
            blocks = np.searchsorted(self.ends, blocks, side="right")
        return np.repeat(np.arange(len(positions)), pieces.counts), blocks

    def _uses(self, epoch: int) -> Uses:
        key, tracks = self._epoch(epoch)
        tape, starts = self.tape(key), tracks.starts
        if self.ends is not None:  # any block may be next
            blocks = np.unique(np.searchsorted(self.ends, tape.numbers, side="right"))
            return Uses.throughout(blocks, self.length)
        filled = np.flatnonzero((np.diff(tape.edges) > 0) & (tape.edges[:-1] < self._read))
        first = tape.edges[filled] // self.window  # windows, of each block
        last = np.minimum((tape.edges[filled + 1] - 1) // self.window, self.length - 1)
        # A block that lies in several tracks is read in as many stretches.
        track = np.searchsorted(starts, first, side="right") - 1
        count = np.searchsorted(starts, last, side="right") - track
        own = np.repeat(np.arange(len(filled)), count)
        track = np.arange(len(own)) - np.repeat(np.cumsum(count) - count, count) + track[own]
        begin = (np.maximum(first[own], starts[track]) - starts[track]) * self.tracks
        end = (np.minimum(last[own], starts[track + 1] - 1) - starts[track] + 1) * self.tracks - 1
        return Uses(tape.numbers[filled][own], begin, np.minimum(end, self.length - 1)).by_first()

    @property
    def _read(self) -> int:
        """The tokens that are read in an epoch, and padding."""
        return self.length * self.window

    def tape(self, key: int) -> Tape:
        """Return the tape of blocks that a key chooses."""
        return self._tapes.of(key, lambda: tape_of_blocks(self.tokens, key))

    def _epoch(self, epoch: int) -> _Epoch:
        return self._derived.of(epoch, lambda: _Epoch.of(self, epoch))


class _Epoch(NamedTuple):
    """The key of an epoch, and the tracks that its tape is cut into."""

    key: int
    tracks: Tracks

    @classmethod
    def of(cls, order: WindowOrder, epoch: int) -> _Epoch:
        key = key_of(order.seed, epoch) if order.shuffles else AS_STORED
        return cls(
            key, Tracks(order.length, order.tracks, key_as_int("windows", order.seed, epoch))
        )
