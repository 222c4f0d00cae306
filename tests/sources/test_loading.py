"""Differences between a state and a loader are said in words that fit the case."""

from dataclasses import replace

import pytest
from support import SEQUENTIAL as SAVED

from dataporter.law.state import Progress
from dataporter.sources.loading import mismatches


def only_mismatch(saved, present):
    (found,) = mismatches(saved, present, world_may_change=False)
    return found


@pytest.mark.parametrize(
    ("saved", "present", "words"),
    [
        (1_000, 1_001, "saved over 1,000 samples, this dataset has 1,001 samples."),
        (1_000, None, "saved over 1,000 samples, this dataset has an unknown number of samples."),
        (None, 1_000, "saved over an unknown number of samples, this dataset has 1,000 samples."),
    ],
)
def test_the_lengths_of_other_data_are_told(saved, present, words):
    found = only_mismatch(replace(SAVED, num_samples=saved), replace(SAVED, num_samples=present))
    assert found.found == f"num_samples changed: the state was {words}"


def test_another_number_of_ranks_cannot_be_passed_over_where_others_share_the_data():
    found = only_mismatch(SAVED, replace(SAVED, world_size=3))
    assert found.as_error(Progress()).endswith("and so does an iterable with lanes=.")
    other_seed = only_mismatch(SAVED, replace(SAVED, seed=2))
    assert other_seed.as_error(Progress()).endswith(
        "pass strict=False to continue here at position 0."
    )
