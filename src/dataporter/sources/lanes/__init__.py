"""Iterable datasets, and datasets with a state: lanes, how they are read and put back."""

from dataporter.sources.lanes.datapipes import is_datapipe
from dataporter.sources.lanes.fetcher import has_lanes, is_iterable
from dataporter.sources.lanes.lane import is_stateful

__all__ = ["has_lanes", "is_datapipe", "is_iterable", "is_stateful"]
