"""Measurements that were never made: a loader whose times are all known."""

from dataporter.fetch.timing import CONSUMER, STAGES, Handed, Made
from dataporter.tools.profile.measuring import Measured, Step, Subject

MS = 1_000_000  # ns


def subject(**changes):
    given = {
        "loader": "ResumableDataLoader",
        "dataset": "Photos",
        "samples": 5000,
        "batch_size": 32,
        "num_workers": 2,
        "adapts": False,
        "prefetch_factor": 2,
        "in_threads": False,
        "is_ours": True,
        "is_iterable": False,
        "has_lanes": False,
        "lanes": None,
        "way": "one by one",
        "has_collate_fn": False,
        "stays": False,
        "snapshot_every": 1,
        "device": None,
        "cores": 8,
        "slow_generators": "",
    }
    return Subject(**{**given, **changes})


def measured(
    *,
    steps=40,
    wait=10.0,
    step=20.0,
    stages=(("fetch", 50.0), ("collate", 2.0), ("write", 1.0)),
    take=0.1,
    ready=1,
    cpu=1.0,
    queued=0.0,
    passes=1,
    first=100.0,
    bytes_by_dtype=None,
    usual=1.0,
    slowest=(),
    draws=False,
    memory=(),
    **about,
):
    """A run of which each batch is like the other. Times are in milliseconds."""
    of = subject(**about)
    slow = tuple((index, spent / 1000) for index, spent in slowest)
    found = Measured(subject=of, step_seconds=step / 1000, slow=slow, memory=list(memory))
    clock = 1_000_000 * MS
    each_pass = -(-steps // passes)
    for number in range(steps):
        is_first = number % each_pass == 0
        asked, got = clock, clock + int((first if is_first else wait) * MS)
        clock = got + int(step * MS)
        found.steps.append(Step(asked, got, clock, is_first, bytes_by_dtype or {"float32": 1000}))
        if not of.is_ours:
            continue
        spans, start = [], asked if not of.num_workers else asked - 500 * MS
        for name, spent in stages:
            end = start + int(spent * MS)
            spans.append((STAGES.index(name), start, end))
            start = end
        making = spans[-1][2] - spans[0][1]
        worker = number % of.num_workers if of.num_workers else CONSUMER
        found.made.append(
            Made(
                number + 1,
                worker,
                int(making * cpu),
                int(making * queued),
                spans,
                32,
                int(usual * MS),
                int(usual * MS),
                number,
                [(index, int(spent * MS)) for index, spent in slowest] if number == 3 else [],
                draws=draws,
            )
        )
        if of.num_workers:
            there = max(got - int(take * MS), asked)
            found.handed.append(Handed(number + 1, asked, there, got, ready))
    return found
