"""Iterable datasets, and datasets with a state: lanes, how they are read and put back."""

from dataporter.streams.datapipes import is_datapipe, is_shared_out, unwrapped, with_shuffling
from dataporter.streams.fetcher import LaneFetcher, has_lanes, is_iterable
from dataporter.streams.lane import is_stateful
from dataporter.streams.sharing import (
    Together,
    check_reading_again,
    fresh_lanes,
    own_lanes,
    share_of,
)
from dataporter.streams.tasks import LaneTasks, Turns

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
