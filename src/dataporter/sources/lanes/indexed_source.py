"""The source of a dataset that is read by index and has a state."""

from __future__ import annotations

from typing import Any

from dataporter.law import Plan, Topology
from dataporter.law.epochs import Cursor
from dataporter.law.lane_states import Lanes
from dataporter.law.state import Identity, Progress
from dataporter.sources.lanes.fetcher import LaneFetcher
from dataporter.sources.lanes.source import LaneSource, with_share
from dataporter.sources.source import Reading, Resumption, Source


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
            **common,
        )
        self._inner = inner
        self.tail = inner.tail
        # It cannot be read again to where it was, so its state is taken at every step.
        self._every = 1

    @property
    def seed(self) -> int:
        return self._inner.seed

    @property
    def shuffle(self) -> bool:  # type: ignore[override]  # a constant elsewhere
        return self._inner.shuffle

    @property
    def topology(self) -> Topology:
        return self._inner.topology

    @property
    def order_id(self) -> str:
        return self._inner.order_id

    def order_id_from(self, saved: str) -> str:
        return self._inner.order_id_from(saved)

    @property
    def plan(self) -> Plan | None:
        return self._inner.plan

    @property
    def num_samples(self) -> int | None:
        return self._inner.num_samples

    @property
    def length(self) -> int | None:
        return self._inner.length

    @property
    def epoch_holder(self) -> Any:
        return self._inner.epoch_holder

    def follow_sampler(self, cursor: Cursor) -> None:
        self._inner.follow_sampler(cursor)

    def tell_epoch(self, epoch: int, cursor: Cursor) -> None:
        self._inner.tell_epoch(epoch, cursor)
        self.note_epoch_told()

    def _mark(self) -> int | None:
        return self._inner._mark()  # noqa: SLF001  our own

    def join_process_group(self) -> None:
        self._inner.join_process_group()

    def fresh(self, epoch: int) -> Progress:
        return self._inner.fresh(epoch)._replace(lanes=self._lanes)

    def ended(self, progress: Progress) -> Progress:
        self._end_lanes(progress)
        return self._inner.ended(progress)

    def start_of(self, progress: Progress) -> Progress:
        lanes = super().start_of(progress).lanes
        return self._inner.start_of(progress)._replace(lanes=lanes)

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
