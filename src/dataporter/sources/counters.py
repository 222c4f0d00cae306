"""Counters that a dataset keeps of itself: a cache's hits, a storage's requests, or any others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from dataporter.law.datasets import stats_of

_log = logging.getLogger(__name__)


def counters_of(dataset: Any) -> dict[str, Any]:
    """Return the numbers that a dataset's `stats()` gives, by name; none without that method.

    A `Subset` or `ConcatDataset` has those of what it is made of.

    >>> class Corpus(list):
    ...     def stats(self):
    ...         return {"hits": 3, "name": "wiki"}
    >>> counters_of(ConcatDataset([Corpus("ab"), Corpus("c")]))
    {'hits': 6}
    """
    if stats := stats_of(dataset):
        return _numbers(stats)
    if isinstance(dataset, Subset):
        return counters_of(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return summed_counters(dataset.datasets)
    return {}


def summed_counters(datasets: Iterable[Any]) -> dict[str, Any]:
    """Return the counters of several datasets together. One that occurs twice counts once."""
    total: Counter[str] = Counter()
    for dataset in {id(dataset): dataset for dataset in datasets}.values():
        total.update(counters_of(dataset))
    return dict(total)


def _numbers(stats: Any) -> dict[str, Any]:
    try:
        found = stats()
    except Exception as error:  # noqa: BLE001  a method of the user's, maybe for another purpose
        _log.debug("%s() failed, so its counters are left out: %r", stats.__qualname__, error)
        return {}
    if not isinstance(found, Mapping):
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, Real)}
