"""The source of a dataset that is read by index and has a state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dataporter.law import Plan, Topology
from dataporter.law.lane_states import Lanes
from dataporter.law.state import Identity, Progress
from dataporter.sources.lanes.fetcher import LaneFetcher
from dataporter.sources.lanes.source import LaneSource, with_share
from dataporter.sources.readings import Reading
from dataporter.sources.source import Resumption, Source


class IndexedLaneSource(LaneSource):
    """Passes over a dataset that is read by index and has a state: `inner` says by which."""

    states_differ = True

    def __init__(
        self, inner: Source, dataset: Any, fetch: LaneFetcher, lanes: Lanes, **common: Any
    ) -> None:
        super().__init__(
            dataset,
            fetch,
            lanes,
            batch_size=inner.batch_size,
            seed_is_given=inner.seed_is_given,
            epochs=inner.epoch_holder,
            **common,
        )
        self._inner = inner
        self.shuffle, self.tail = inner.shuffle, inner.tail
        # It cannot be read again to where it was, so its state is taken at every step.
        self._every = 1

    @property
    def seed(self) -> int:
        return self._inner.seed

    @property
    def topology(self) -> Topology:
        return self._inner.topology

    @property
    def plan(self) -> Plan | None:
        return self._inner.plan

    @property
    def length(self) -> int | None:
        return self._inner.length

    def identity(self) -> Identity:
        return self._of_this_rank(self._inner.identity())

    def identity_after(self, saved: Identity) -> Identity:
        return self._of_this_rank(self._inner.identity_after(saved))

    def _of_this_rank(self, identity: Identity) -> Identity:
        here = self.topology
        return replace(identity, rank=here.rank if here.world_size > 1 else None)

    def prepare(self) -> None:
        self._inner.prepare()

    def fresh(self, epoch: int) -> Progress:
        return self._inner.fresh(epoch)._replace(lanes=self._lanes)

    def ended(self, progress: Progress) -> Progress:
        self._end_lanes(progress)
        return self._inner.ended(progress)

    def at(self, progress: Progress, position: int) -> Progress:
        lanes = super().at(progress, position).lanes
        return self._inner.at(progress, position)._replace(lanes=lanes)

    def num_batches(self) -> int:
        return self._inner.num_batches()

    def settle(self, progress: Progress) -> None:
        self._inner.settle(progress)
        super().settle(progress)

    def take_back(self, progress: Progress) -> None:
        self._inner.take_back(progress)
        super().take_back(progress)

    def begin(self, progress: Progress, *, same_workers: bool) -> Reading:
        over = self._inner.begin(progress, same_workers=same_workers)
        return self._begin_lanes(over, progress, same_workers=same_workers, in_order=True)

    def admit(
        self, progress: Progress, saved: Identity, *, same_data: bool, strict: bool
    ) -> tuple[Progress, int | None]:
        moved, length = self._inner.admit(progress, saved, same_data=same_data, strict=strict)
        return with_share(moved, self._lanes, self.topology, splits=False), length

    def restore(self, progress: Progress) -> None:
        self._inner.restore(progress)
        super().restore(progress)

    def undo_restore(self) -> None:
        self._inner.undo_restore()  # the lanes stay those of the state's run, at its start

    def resume(self, at: Resumption) -> None:
        self._inner.resume(at)
        super().restore(at.progress)
