"""The source of an iterable: its lanes, which the ranks may share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dataporter.errors import TopologyError
from dataporter.law import Ranks, Topology
from dataporter.law.lane_states import Lanes, LaneState
from dataporter.law.state import Identity, Progress, merged, parse_state
from dataporter.ranks import agreed, check_who_shares, data_topology, is_several
from dataporter.sources.lanes.datapipes import is_shared_out, unwrapped
from dataporter.sources.lanes.fetcher import LaneFetcher
from dataporter.sources.lanes.iterable import Iterable
from dataporter.sources.lanes.reading import lanes_of
from dataporter.sources.lanes.sharing import Together, check_reading_again, own_lanes
from dataporter.sources.lanes.source import LaneSource, with_share
from dataporter.sources.readings import Reading
from dataporter.sources.source import EpochHolder, Resumption


class IterableSource(LaneSource):
    """Passes over an iterable, of which each rank reads all lanes, or its share (`splits`)."""

    def __init__(
        self,
        iterable: Iterable,
        dataset: Any,
        fetch: LaneFetcher,
        lanes: Lanes,
        *,
        ranks: Ranks,
        seed: int,
        splits: bool,
        ends_together: bool,
        in_order: bool,
        **common: Any,
    ) -> None:
        super().__init__(dataset, fetch, lanes, epochs=EpochHolder(iterable.epoch_holder), **common)
        self._iterable = iterable
        self.tail = iterable.tail
        self._ranks = ranks
        self._topology = ranks.topology  # lanes were dealt to it
        self._seed = seed
        self._splits = self.world_may_change = splits
        self.states_differ = not splits
        self._ends_together = ends_together
        self._together = Together()
        self._in_order = in_order

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def topology(self) -> Topology:
        return self._topology

    def identity(self) -> Identity:
        return self._identity(self._iterable.order_id)

    def prepare(self) -> None:
        super().prepare()
        if not is_several():
            return
        if self._ranks.follow_group:
            self._check_share()
        if self._ranks.seed_is_open and not self.seed_is_given:
            self._seed = agreed(self._seed)
        self._ranks = replace(self._ranks, seed_is_open=False)

    def _check_share(self) -> None:
        """Raise if this rank's lanes are not those of the ranks that share the data now."""
        shares = self._splits or is_shared_out(self.dataset)
        if shares:
            check_who_shares()
        now = data_topology()
        if now is None or now == self._topology or not (shares or self._ends_together):
            return
        msg = (
            f"{type(self.dataset).__name__} is read by rank {self._topology.rank} of "
            f"{self._topology.world_size}, as it was when this loader was built; now there are "
            f"{now.world_size} ranks. Build it after torch.distributed.init_process_group() and "
            "the mesh; in a trainer, in the function that is asked for the loader."
        )
        raise TopologyError(msg)

    def fresh(self, epoch: int) -> Progress:
        self._together.forget()
        return Progress(epoch=epoch, lanes=self._lanes)

    def ended(self, progress: Progress) -> Progress:
        self._end_lanes(progress)
        return progress._replace(finished=True)

    def num_batches(self) -> int:
        return self._iterable.num_batches()

    def begin(self, progress: Progress, *, same_workers: bool) -> Reading:
        reading = self._begin_lanes(
            self._iterable, progress, same_workers=same_workers, in_order=self._in_order
        )
        if not self._ends_together or self._topology.world_size == 1:
            return reading
        return replace(reading, together=self._together.ended)

    def parse(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Any:
        if not (self._splits and isinstance(state, list) and state):
            return parse_state(state)
        parsed = [parse_state(one) for one in state]
        identity, together = merged(parsed)
        lanes = lanes_of(together)
        own = set(own_lanes(lanes.count, self._topology, split=True))
        for _, progress in parsed:
            if lanes_of(progress).each.keys() == own:  # as many ranks: this is where this one was
                lanes = lanes_of(progress)._replace(each=lanes.each)
                return identity, progress._replace(lanes=lanes, finished=together.finished)
        return identity, together

    def admit(
        self, progress: Progress, saved: Identity, *, same_data: bool, strict: bool
    ) -> tuple[Progress, int | None]:
        progress = with_share(progress, self._lanes, self._topology, splits=self._splits)
        lanes = lanes_of(progress)
        if lanes.count == 1 and lanes.has_worker_info is None:
            # Such a state is of a version that told a lane of itself in worker processes only.
            lanes = lanes._replace(has_worker_info=not self._reads_inline)
            progress = progress._replace(lanes=lanes)
        if not progress.finished:
            check_reading_again(
                progress,
                saved.batch_size,
                self.batch_size,
                dataset=unwrapped(self.dataset),
                snapshot_every=self._every,
            )
        return progress, None

    def resume(self, at: Resumption) -> None:
        self.restore(at.progress)
        self._together.forget()
        self._seed = at.seed
        self._ranks = replace(self._ranks, seed_is_open=False)

    def _is_cut(self, state: LaneState) -> bool:
        return not state.ended
