"""The lanes' fetcher: an engine runs it as any other, one call a batch.

It keeps the lanes that this process reads. A lane that has no process of its own reads a
copy of the dataset.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset

from dataporter.errors import LaneError, add_note
from dataporter.fetch import Fetcher, getitems_of
from dataporter.fetch.collate import Empty
from dataporter.fetch.generators import draws_refused
from dataporter.fetch.randomness import EpochKeys, LaneRandomness, each_seeded, in_lane
from dataporter.fetch.tasks import LaneTurn, Samples, Start, payload_in_words
from dataporter.fetch.timing import FETCH, STATE, Timing
from dataporter.fetch.worker_info import WorkerInfo, call_announced
from dataporter.law import Topology
from dataporter.law.lane_states import Lanes
from dataporter.sources.lanes.datapipes import seed_pass, take_share, unwrapped
from dataporter.sources.lanes.lane import Lane, LaneContext, is_stateful, keep_epoch_to_itself


class LaneBatch(NamedTuple):
    """A fetched batch of `size` samples, and the lane's states after it."""

    batch: Any
    size: int
    ended: bool
    seeded_from: int | None
    dataset: bytes | None = None
    iterator: bytes | None = None


class LaneFetcher:
    """Fetches batches of lanes, which `readers` processes share.

    `inline` if that is the consumer's own process. `init` is called once for each lane, unless
    there is only one and it is read there. `ranks` are those that read as many lanes each, of which
    a DataPipe takes its share.
    """

    def __init__(
        self,
        dataset: Any,
        fetch: Fetcher,
        *,
        lanes: Lanes,
        batch_size: int,
        drop_last: bool,
        randomness: bool,
        watches: bool,
        init: Callable[[int], None] | None,
        readers: int,
        inline: bool,
        ranks: Topology,
    ) -> None:
        self._dataset = dataset
        self._fetch = fetch
        self._size = batch_size
        self._drop_last = drop_last
        self._randomness = randomness
        self._watches = watches  # for draws: this process's threads, which read, would share them
        self._init = init
        self._readers = readers
        self._inline = inline
        self._ranks = ranks
        self._iterable = is_iterable(dataset)
        self._contexts: dict[int, LaneContext] = {}
        self._lanes: dict[int, Lane] = {}
        self._is_new = True  # the dataset: nothing was read from it, but from copies of it
        self._first: bytes | None = None  # its state before that
        self._share(lanes)

    def _share(self, lanes: Lanes) -> None:
        self._count = lanes.count
        self._own = frozenset(lanes.each)
        self._has_worker_info = lanes.has_worker_info
        self._crowded = len(self._own) > self._readers
        # As torch's loader without workers, it does not call `worker_init_fn` for a single lane.
        self._initialises = not self._inline or lanes.count > 1
        told = self._has_worker_info
        self._is_told = self._initialises if told is None else told

    def reads(self, lanes: Lanes) -> bool:
        """Return True if this fetcher was made for these lanes."""
        made_for = self._count, self._own, self._has_worker_info
        return made_for == (lanes.count, frozenset(lanes.each), lanes.has_worker_info)

    def for_lanes(self, lanes: Lanes) -> LaneFetcher:
        """The same for other lanes, none of which has begun."""
        other = copy.copy(self)
        other._share(lanes)  # noqa: SLF001  our own
        return other

    def for_one_pass(self) -> LaneFetcher:
        """The same lanes, to be read by a pass beside others in this process."""
        again = copy.copy(self)
        again._contexts = self._contexts  # noqa: SLF001  our own: datasets stay from pass to pass
        return again

    @property
    def timing(self) -> Timing | None:
        return self._fetch.timing

    def begin_pass(self) -> None:
        """Do nothing: lanes begin one by one."""

    def __getstate__(self) -> dict[str, Any]:
        # A copy opens lanes of its own, of a dataset that this one may have read from.
        state = {**self.__dict__, "_contexts": {}, "_lanes": {}}
        if not self._crowded and self._contexts:
            context = next(iter(self._contexts.values()))
            state |= {"_is_new": context.is_new, "_first": context.first}
        return state

    def __call__(self, turn: LaneTurn, empty: Empty | None = None) -> tuple[Any, ...]:
        """Fetch the next batch of a lane; the parts of a `LaneBatch`."""
        return in_lane(self._read, turn, empty, seeds_globals=self._randomness)

    def _read(self, turn: LaneTurn, empty: Empty | None) -> tuple[Any, ...]:
        if turn.start is not None:
            self._begin(turn.lane, turn.start, turn.keys)
        lane = self._lanes[turn.lane]
        if lane.ended:
            # Asked for before its end was known. What has ended is not asked once more:
            # it may begin again.
            return None, 0, True, None, None, None
        samples: Any
        if turn.samples is None:
            samples = lane.draw(turn.number)
            count = len(samples)
        else:
            samples, count = lane.apply(partial(self._indexed, turn.samples), turn.number)
        timing = self._fetch.timing
        if timing is not None:
            timing.end(FETCH, count)
        if self._drop_last and lane.ended:
            count = 0
        try:
            batch = self._fetch.collated(samples, empty) if count else None
        except Exception as error:
            add_note(error, f"dataporter was making a batch of {payload_in_words(turn)}")
            raise
        if turn.samples is None:  # else each sample is seeded by its position
            lane.randomness.note_draws(turn.number)
        states = lane.capture() if turn.captures or lane.ended else (None, None)
        if timing is not None:
            timing.end(STATE)
        return (batch, count, lane.ended, lane.randomness.seeded_from, *states)

    def _indexed(self, samples: Samples, dataset: Any) -> tuple[Any, int]:
        """Fetch samples of a dataset that is read by index; they, and how many."""
        indices = samples.indices
        wanted: Any = indices.tolist() if isinstance(indices, np.ndarray) else indices
        keys, seeds = samples.keys.sample_keys(samples.positions), self._randomness
        at_once = getitems_of(dataset) if self._fetch.is_batched else None
        if at_once is None:
            return each_seeded(dataset.__getitem__, wanted, keys, seeds_globals=seeds), len(wanted)
        # It cannot be called once more, so there is no seeing whether its samples are separable.
        (batch,) = each_seeded(at_once, [wanted], keys[:1] or [0], seeds_globals=seeds)
        return batch, len(wanted)

    def open(self, starts: Mapping[int, Start], keys: EpochKeys) -> dict[int, bytes | None]:
        """Begin lanes at once; the states of those datasets that had never been read before."""
        firsts = {}
        for number, start in starts.items():
            is_new = number not in self._contexts
            in_lane(self._begin, number, start, keys, seeds_globals=self._randomness)
            if is_new:
                firsts[number] = self._contexts[number].first
        return firsts

    def _begin(self, number: int, start: Start, keys: EpochKeys) -> None:
        randomness = LaneRandomness(
            keys, number, seeded_from=start.seeded_from, seeds_globals=self._randomness
        )
        if number not in self._contexts:
            randomness.enter(-1)
            self._contexts[number] = self._opened(number)
        self._lanes.pop(number, None)  # that of a pass before is read no more
        context = self._contexts[number]
        lane = Lane(context, randomness, iterable=self._iterable, batch_size=self._size)
        seed_pass(context.dataset, keys)
        with draws_refused() if self._watches else nullcontext():
            lane.begin(start, keys.epoch)
        self._lanes[number] = lane

    def _opened(self, number: int) -> LaneContext:
        dataset, name = unwrapped(self._dataset), f"lane {number} of {self._count}"
        if self._crowded:
            try:
                dataset = copy.deepcopy(dataset)
            except Exception as error:
                msg = (
                    f"{name} needs a copy of the dataset, since a process reads several lanes, "
                    f"and {type(dataset).__name__} cannot be copied: {type(error).__name__}: "
                    f"{error}. Use num_workers={self._count}, one for each lane."
                )
                raise LaneError(msg) from error
        if not self._inline:
            keep_epoch_to_itself(dataset)
        world_size, rank = self._ranks.world_size, self._ranks.rank
        take_share(dataset, self._count * world_size, number * world_size + rank)
        context = LaneContext(name, dataset, is_new=self._is_new, first=self._first)
        if not (self._is_told or self._initialises):
            return context
        info = WorkerInfo(
            id=number,
            num_workers=self._count,
            seed=torch.initial_seed() % 2**63,
            dataset=dataset,
        )
        if self._init is not None and self._initialises:
            call_announced(info, self._init, number)
        context.info = info if self._is_told else None
        return context


def is_iterable(dataset: Any) -> bool:
    """Return True if a dataset is iterated, not read by index."""
    return isinstance(dataset, IterableDataset)


def has_lanes(dataset: Any) -> bool:
    """Return True if a dataset is read in lanes: an iterable, or one that has a state."""
    return is_iterable(dataset) or is_stateful(dataset)
