"""The order of packed windows: from the start to the end of a tape, or in tracks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataporter.law import Order, Uses
from dataporter.law.keys import key_as_int
from dataporter.law.orders import NOTHING, UNUSED, Derived
from dataporter.law.tracks import Tracks
from dataporter.views.tape import AS_STORED, Tape
from dataporter.views.windows import key_of, tape_of_blocks

_NAME = "windows-1"  # the number rises if the order ever changes
_AS_STORED = f"{_NAME}, as stored"


@dataclass(frozen=True, slots=True, eq=False)
class WindowOrder(Order):
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

    @property
    def leaves(self) -> frozenset[str]:  # type: ignore[override]  # a constant elsewhere
        return frozenset() if self.leaf is None else frozenset({self.leaf})

    def reads(
        self, leaf: str, epoch: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if leaf != self.leaf or not len(positions):
            return NOTHING, NOTHING
        key, tracks = self._epoch(epoch)
        tape = self.tape(key)
        starts = tracks.places(positions) * self.window
        pieces = tape.cut(starts, np.minimum(starts + self.window, tape.edges[-1]))
        blocks = pieces.numbers
        if self.ends is not None:
            blocks = np.searchsorted(self.ends, blocks, side="right")
        return np.repeat(np.arange(len(positions)), pieces.counts), blocks

    def uses(self, leaf: str, epoch: int) -> Uses:
        if leaf != self.leaf:
            return UNUSED
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
