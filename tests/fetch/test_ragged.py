"""Sequences of numbers are told from other values."""

import numpy as np
import pytest
import torch

from dataporter.fetch.ragged import is_sequence


@pytest.mark.parametrize("value", [[1, 2], (0.5,), [], torch.ones(2), np.ones(0)], ids=repr)
def test_a_list_a_tuple_or_one_dimension_of_numbers_is_a_sequence(value):
    assert is_sequence(value)


@pytest.mark.parametrize(
    "value",
    [1, "ab", {"x": 1}, ["ab"], [b"ab"], [[1]], [(1,)], [{}], [np.ones(1)], torch.ones(1, 1)],
    ids=repr,
)
def test_what_holds_anything_but_numbers_is_no_sequence(value):
    assert not is_sequence(value)
