"""Steps counted back from a state are the steps that the run made."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_in_step import ranks
from support import Ids

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError
from dataporter.law.state import Progress
from dataporter.tools.show.showing import Standing


def standing(loader: ResumableDataLoader) -> Standing:
    words = loader.explain()
    return Standing(plan=loader.plan, progress=words.progress, excluded=words.identity.excluded)


@settings(max_examples=60)
@given(
    st.integers(1, 30),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(["pad", "drop", "uneven"]),
    st.booleans(),
    st.data(),
)
def test_every_batch_of_a_run_is_found_by_counting_back(length, world, size, tail, ends, data):
    loader = ranks(length, world, size, shuffle=True, tail=tail)[0]
    if length > 1 and data.draw(st.booleans()):
        start = data.draw(st.integers(0, length - 2))
        loader.exclude(1, start, data.draw(st.integers(start + 1, length - 1)))
    made = []
    for _ in range(2):
        made += [(loader.delivered.epoch, loader.delivered.position) for _ in loader]
    batches = iter(loader)
    for _ in range(data.draw(st.integers(0, 5))):
        if next(batches, None) is not None:
            made.append((loader.delivered.epoch, loader.delivered.position))
    if ends:
        for _ in batches:
            made.append((loader.delivered.epoch, loader.delivered.position))
    at = standing(loader)
    assert [at.back(steps) for steps in range(len(made))] == made[::-1]
    assert at.is_aligned
    with pytest.raises(OptionError, match="before the beginning of the run: only"):
        at.back(len(made))


def test_a_changed_batch_size_is_noticed():
    loader = ResumableDataLoader(Ids(30), 4)
    next(iter(loader))
    resumed = ResumableDataLoader(Ids(30), 5)
    resumed.load_state_dict(loader.state_dict())
    assert not standing(resumed).is_aligned
    batches = iter(resumed)
    next(batches), next(batches)
    at = standing(resumed)
    assert not at.is_aligned
    assert [at.back(steps) for steps in range(3)] == [(0, 9), (0, 4), (0, 0)]


def test_an_epoch_of_unknown_length_is_not_guessed():
    at = standing(ResumableDataLoader(Ids(10), 4))
    grown = replace(at, progress=Progress(3, 4, 1), lengths_differ=True)
    assert grown.back(0) == (3, 0)
    with pytest.raises(OptionError, match="is in epoch 2, and the dataset has grown since"):
        grown.back(1)
