"""Lanes, the common part of the sources of iterables and of datasets with a state.

A lane is one logical copy of the dataset. Its state is kept beside the run's position, so a
resume may use any number of workers; ranks may share the lanes of an iterable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataporter.fetch.randomness import EpochKeys
from dataporter.fetch.tasks import Start
from dataporter.law import Topology
from dataporter.law.lane_states import Lanes, LaneState
from dataporter.law.state import Progress
from dataporter.sources.lanes.fetcher import LaneFetcher
from dataporter.sources.lanes.iterable import Iterable
from dataporter.sources.lanes.lane import is_stateful
from dataporter.sources.lanes.reading import LaneReading, lanes_of
from dataporter.sources.lanes.sharing import share_of
from dataporter.sources.readings import Reading
from dataporter.sources.source import EpochHolder, Source


class LaneSource(Source):
    """The common part of sources in lanes: where lanes begin and where they stand.

    `carries` if a lane's dataset goes on from epoch to epoch, as it does unless workers are
    started anew for each.
    """

    has_lanes = True
    place_lacks = "the dataset's lanes"
    _rank_may_differ = False

    def __init__(
        self,
        dataset: Any,
        fetch: LaneFetcher,
        lanes: Lanes,
        *,
        batch_size: int | None,
        seed_is_given: bool,
        epochs: EpochHolder,
        carries: bool,
        reads_inline: bool,
        snapshot_every: int,
    ) -> None:
        super().__init__(dataset, batch_size=batch_size, seed_is_given=seed_is_given, epochs=epochs)
        self._fetch = fetch
        self._stateful = is_stateful(dataset)
        self._carries = carries
        self._reads_inline = reads_inline
        self._every = snapshot_every
        self._lanes = lanes  # of the next epoch, at its start
        self._began = lanes  # of the last one
        self._put_back: set[int] = set()  # lanes that are not where the next pass begins
        self._reading: LaneReading | None = None  # the newest

    def __getstate__(self) -> dict[str, Any]:
        # Nobody has read the lanes of a copy: they are put back to where they are known to be.
        return {**self.__dict__, "_put_back": set(self._lanes.each), "_reading": None}

    def at(self, progress: Progress, position: int) -> Progress:
        return super().at(progress, position)._replace(lanes=lanes_of(progress).afresh({}))

    def settle(self, progress: Progress) -> None:
        self._lanes = self._began
        self._bring_along()

    def take_back(self, progress: Progress) -> None:
        self._bring_along()

    def restore(self, progress: Progress) -> None:
        lanes = lanes_of(progress)
        self._began = lanes.afresh({})
        self._lanes = self._following(lanes) if progress.finished else self._began
        if not self._fetch.reads(self._lanes):
            self._fetch = self._fetch.for_lanes(self._lanes)
        self._bring_along()

    def _bring_along(self) -> None:
        """Let lanes begin from their known states: they, or their readers, are elsewhere."""
        self._put_back = set(self._lanes.each)

    def _begin_lanes(
        self, over: Iterable | Reading, progress: Progress, *, same_workers: bool, in_order: bool
    ) -> Reading:
        """Begin to read lanes: at once what is read in this process, else with their tasks."""
        fetch = self._fetch
        if self._reads_inline:
            fetch = fetch.for_one_pass()
        elif not same_workers:
            self._bring_along()
        lanes = lanes_of(progress)
        starts = {
            lane: Start(state if lane in self._put_back else None, state.seeded_from)
            for lane, state in lanes.each.items()
            if not state.ended
        }
        keys = EpochKeys(self.seed, progress.epoch)
        if self._reads_inline:
            lanes = _begun(lanes, fetch.open(starts, keys))
            progress, starts = progress._replace(lanes=lanes), {}
        if lanes.are_at_start:
            self._began = lanes
        self._put_back = set()
        reading = LaneReading(over, progress, starts, keys, in_order=in_order, every=self._every)
        self._reading = reading
        return Reading(
            tasks=reading,
            fetch=fetch,
            progress=progress,
            received=reading.received,
            renew=reading.renew,
            in_order=in_order,
        )

    def _end_lanes(self, progress: Progress) -> None:
        lanes = lanes_of(progress)
        self._lanes = self._following(lanes)
        self._put_back = {lane for lane in lanes.each if self._is_cut(lanes.each[lane])}
        if self._reading is not None:
            self._put_back |= self._reading.away

    def _following(self, lanes: Lanes) -> Lanes:
        """Return the lanes of the epoch after one that ended with `lanes`."""
        if not self._carries:
            return lanes.afresh({})
        datasets = {}
        for lane, state in lanes.each.items():
            left = state.dataset
            # An iterator that is the dataset itself has its state.
            if left is None and self._stateful:
                left = state.iterator
            datasets[lane] = self._began.each[lane].dataset if self._is_cut(state) else left
        return lanes.afresh(datasets)

    def _is_cut(self, state: LaneState) -> bool:
        """Say whether a pass ended before this lane did, with the first rank that had no more."""
        return False


def with_share(progress: Progress, lanes: Lanes, topology: Topology, *, splits: bool) -> Progress:
    """Return a progress whose lanes are those that this rank reads, `lanes` if it has none."""
    if progress.lanes is None:
        return progress._replace(lanes=lanes)
    return progress._replace(lanes=share_of(progress.lanes, topology, split=splits))


def _begun(lanes: Lanes, firsts: Mapping[int, bytes | None]) -> Lanes:
    """Return lanes with their datasets' states before anything was read, where none is known."""
    each = {
        lane: state._replace(dataset=firsts.get(lane))
        if state.is_at_start and state.dataset is None
        else state
        for lane, state in lanes.each.items()
    }
    return lanes._replace(each=each)
