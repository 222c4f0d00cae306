"""Drawing from a sampler of the user's own, for one pass, from wherever that begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataporter.fetch.generators import Captured, capture, seed_all
from dataporter.law.ranges import Ranges, outside
from dataporter.sources.users_sampler import Drawer, UsersSampler

Drawn = TypeVar("Drawn")

_DROPPED = 2**16  # indices that are drawn and dropped at a time


class Drawing:
    """The draws of one pass from a sampler, independent of other passes over it."""

    def __init__(
        self,
        sampler: UsersSampler,
        drawn_from: Any,
        isolated: Isolated | Shared,
        drawer: Drawer | None,
        *,
        yields_batches: bool,
    ) -> None:
        self._sampler = sampler
        self._drawn_from = drawn_from
        self._isolated = isolated
        self._drawer = drawer
        self._yields_batches = yields_batches
        self._rest: list[Any] = []  # of a batch of which a part was consumed
        sampler.draw_for(drawer)
        isolated.call(self._begin)

    def _begin(self) -> None:
        self._each = iter(self._drawn_from)
        if self._each is self._drawn_from:
            self._each = _advanced(self._each)

    def batch(
        self, size: int, number: int, ahead: Ranges
    ) -> tuple[list[Any] | None, NDArray[np.int64], int]:
        """Draw a batch from index number `number` on; its numbers, and which one comes next.

        Those in `ahead` are left out: they were delivered before their turn. None at the end.
        """
        drawn = self.take(size)
        if drawn is None or not ahead:
            after = number + len(drawn or ())
            return drawn, np.arange(number, after, dtype=np.int64), after
        indices: list[Any] = []
        numbers: list[int] = []
        while drawn is not None:
            wanted = outside(ahead, number, number + len(drawn))
            indices += [drawn[at - number] for at in wanted]
            numbers += wanted
            number += len(drawn)
            drawn = self.take(size - len(indices)) if len(indices) < size else None
        return indices or None, np.array(numbers, dtype=np.int64), number

    def take(self, count: int) -> list[Any] | None:
        """Draw so many indices, or one batch if the sampler yields batches; None at its end."""
        if self._rest:
            rest, self._rest = self._rest, []
            return rest
        if self._sampler.draw_for(self._drawer) and self._sampler.is_stateful:
            self._begin()  # a state that was put back takes effect in a new iterator
        if not self._yields_batches:
            return self._isolated.call(lambda: list(itertools.islice(self._each, count))) or None
        batch = self._isolated.call(lambda: next(self._each, None))
        return None if batch is None else _listed(batch)

    def skip(self, count: int, batches: int) -> int:
        """Draw so many indices and drop them, and empty batches that are among the first ones.

        Return how many indices there were fewer.
        """
        while count > 0:
            drawn = self.take(min(count, _DROPPED))
            if drawn is None:
                return count
            self._rest, count, batches = drawn[count:], count - len(drawn), batches - 1
        while batches > 0 and not self._rest:
            drawn = self.take(1)
            if drawn is None:
                break
            self._rest, batches = drawn, batches - 1
        return 0

    def skip_batches(self, count: int, size: int) -> int:
        """Draw so many batches and drop them; return how many indices they had."""
        dropped = 0
        for _ in range(count):
            drawn = self.take(size)
            if drawn is None:
                break
            dropped += len(drawn)
        return dropped


def _advanced(drawing: Iterator[Any]) -> Iterator[Any]:
    """Yield the rest of an iterator that restarts whenever `iter` is called on it."""
    while True:
        try:
            yield next(drawing)
        except StopIteration:
            return


def _listed(batch: Any) -> list[Any]:
    """A batch of indices as a list, of ints where it was an array or a tensor."""
    listed: list[Any] = batch.tolist() if hasattr(batch, "tolist") else list(batch)
    return listed


class Isolated:
    """Global generators of a sampler's own, seeded by a key, in place of the caller's.

    So its draws are the same at every replay, and neither take from nor give to the
    numbers that the caller draws in between. After `uses`, they are the caller's again.
    """

    def __init__(self, key: int, *, uses: int | None) -> None:
        self._uses: int | None = None
        self._own: Captured | None = None
        self.call(partial(seed_all, key))
        self._uses = uses

    def call(self, draw: Callable[[], Drawn]) -> Drawn:
        """Call `draw` with these generators. The caller's are back then, whatever it raises."""
        if self._uses == 0:
            return draw()
        callers = capture()
        try:
            if self._own is not None:
                self._own.restore()
            drawn = draw()
            self._own = capture()
        finally:
            try:
                callers.restore()
            except BaseException:  # an interrupt
                callers.restore()
                raise
        self._uses = None if self._uses is None else self._uses - 1
        return drawn


class Shared:
    """The global generators as the caller has them, for a sampler that draws nothing."""

    def call(self, draw: Callable[[], Drawn]) -> Drawn:
        """Call `draw`."""
        return draw()
