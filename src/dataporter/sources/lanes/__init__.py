"""Iterable datasets, and datasets with a state: lanes, how they are read and put back."""

from dataporter.sources.lanes.datapipes import is_datapipe, is_shared_out, unwrapped, with_shuffling
from dataporter.sources.lanes.fetcher import LaneFetcher, has_lanes, is_iterable
from dataporter.sources.lanes.lane import is_stateful
from dataporter.sources.lanes.sharing import (
    Together,
    check_reading_again,
    fresh_lanes,
    own_lanes,
    share_of,
)
from dataporter.sources.lanes.tasks import LaneTasks, Turns

__all__ = [
    "LaneFetcher",
    "LaneTasks",
    "Together",
    "Turns",
    "check_reading_again",
    "fresh_lanes",
    "has_lanes",
    "is_datapipe",
    "is_iterable",
    "is_shared_out",
    "is_stateful",
    "own_lanes",
    "share_of",
    "unwrapped",
    "with_shuffling",
]
