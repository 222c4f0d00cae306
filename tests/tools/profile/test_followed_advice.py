"""An advice that is followed takes away the cause that it names, and is not given again."""

import functools

import advised_loaders
import pytest

from dataporter.tools.profile import profile


def profiled(name, *, followed):
    make = functools.partial(getattr(advised_loaders, name), followed=followed)
    return profile(make, batches=40, step_ms=0)


# What is counted of a profile, not timed: it falls.
@pytest.mark.parametrize(
    ("name", "change", "counted"),
    [
        ("collation", "cheaper collation", lambda found: found.measured.subject.has_collate_fn),
        ("converter", "a cheaper converter", lambda found: "convert" in found.figures.stages),
        ("vectorised", "__getitems__", lambda found: found.measured.subject.way == "one by one"),
        ("random_numbers", "random numbers", lambda found: found.figures.draws),
        ("memory", "memory that grows", lambda found: found.figures.growth),
        ("slow_samples", "the slowest samples", lambda found: len(found.figures.slowest)),
        ("snapshots", "snapshot_every", lambda found: 10 - found.measured.subject.snapshot_every),
        ("dtypes", "smaller dtypes", lambda found: found.figures.bytes_per_batch),
    ],
)
def test_an_advice_that_is_followed_is_not_given_again(name, change, counted):
    before, after = (profiled(name, followed=followed) for followed in (False, True))
    assert any(each.change.startswith(change) for each in before.verdict.advice)
    assert counted(after) < counted(before)
    assert not any(each.change.startswith(change) for each in after.verdict.advice)
