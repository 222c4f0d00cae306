"""Filtered data, as datasets are asked for it."""

import pytest

from dataporter.views import where


@pytest.fixture
def even():
    return where(list(range(10)), lambda number: number % 2 == 0, name="even", lazy=False)


def test_samples_are_asked_for_from_either_end_and_in_any_number(even):
    assert even.__getitems__([4, 0, -1]) == [8, 0, 8]
    assert even.__getitems__([]) == []
    assert even.indices_in_data([]).tolist() == []


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_outside_is_an_error(even, index):
    with pytest.raises(IndexError):
        even.__getitems__([0, index])
