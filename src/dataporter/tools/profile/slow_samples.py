"""Samples that are slow at each fetch, not because of something else on the machine.

The longest fetches of a run are only suspects: a scheduler, another process or a cold disk can make
any sample seem slow. So suspects are fetched again after the run, in turns with ordinary samples,
and named if even their fastest fetch takes far longer than most of those.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
from collections.abc import Sequence
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from dataporter.fetch.timing import Made
from dataporter.resumable_dataloader import ResumableDataLoader

_NAMED = 5
_AGAIN = 3  # fetches of a suspect
_MOST = 75  # percent of the samples
_FAR_SLOWER = 5  # times the longest fetch of most samples
_LONG = 1e-3  # seconds; a faster sample is not worth naming

Slow = tuple[int | str, float]  # the index of a sample, and seconds


def slow_samples(dataset: Any, made: Sequence[Made], deadline: float) -> tuple[Slow, ...]:
    """Find samples that are slow at each fetch, slowest first, until a deadline (monotonic)."""
    least = max(_FAR_SLOWER * _most_take(made), _LONG)
    left = deadline - monotonic()
    suspects = []
    for index, spent in longest(made):
        if spent >= least and _AGAIN * spent <= left:
            suspects.append(index)
            left -= _AGAIN * spent
    ordinary = dict.fromkeys(batch.middle for batch in made if batch.middle is not None)
    others = [index for index in ordinary if index not in suspects][:_NAMED]
    if not suspects or not others:
        return ()
    times = _fetched_again(dataset, [*suspects, *others], deadline)
    usual = [spent for index in others for spent in times[index]]
    least = max(least, _FAR_SLOWER * float(np.percentile(usual, _MOST))) if usual else math.inf
    found = [
        (name_of(index), min(times[index]))
        for index in suspects
        if len(times[index]) == _AGAIN and min(times[index]) >= least
    ]
    return tuple(sorted(found, key=lambda each: -each[1]))


def name_of(index: int | str) -> int | str:
    """Return the index of a sample as reports show it."""
    return index if isinstance(index, int) else reprlib.repr(index)


def longest(made: Sequence[Made]) -> list[Slow]:
    """List the samples with the longest fetches, each once."""
    each: dict[int | str, int] = {}
    for batch in made:
        for index, spent in batch.slowest:
            each[index] = max(spent, each.get(index, 0))
    ranked = sorted(each.items(), key=lambda item: -item[1])
    return [(index, spent / 1e9) for index, spent in ranked[:_NAMED]]


def _most_take(made: Sequence[Made]) -> float:
    """Return the seconds within which most samples are fetched, by batches and within them."""
    timed = [batch for batch in made if batch.usual]
    if not timed:
        return 0.0
    within = np.median([batch.most for batch in timed])
    return float(max(within, np.percentile([batch.usual for batch in timed], _MOST))) / 1e9


def _fetched_again(
    dataset: Any, indices: Sequence[int | str], deadline: float
) -> dict[int | str, list[float]]:
    """Fetch samples several times in turns, without workers; return the seconds of each."""
    loader = ResumableDataLoader(dataset, None, sampler=[*indices] * _AGAIN)
    times: dict[int | str, list[float]] = {index: [] for index in indices}
    samples = iter(loader)
    for index in [*indices] * _AGAIN:
        if monotonic() > deadline:
            break
        began = perf_counter()
        # A sample that only workers can read is skipped; after an error, the next one follows.
        with contextlib.suppress(Exception):
            next(samples)
            times[index].append(perf_counter() - began)
    return times
