"""Rows of which no batch can be made are named."""

import pytest
import torch

from dataporter.errors import CollationError
from dataporter.fetch.rows import collate_values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([None, None], "row 0 has None. Leave such rows out"),
        ([1, 2, None], "row 2 has None. Leave such rows out"),
        ([[1, 2], [1]], "row 1 has list of 1, row 0 has list of 2. Let the dataset return"),
        ([(1,), (1,), (1, 2)], "row 2 has tuple of 2, row 0 has tuple of 1. Let the"),
        ([1, "2"], "row 1 has str, row 0 has int. Let the dataset return equal"),
        ([torch.ones(2), 1], r"row 1 has int, row 0 has shape \(2,\). Let the"),
        ([2**64, 2**64], "the column cannot be made into one batch: (?!row)"),
    ],
)
def test_the_first_row_that_is_unlike_the_others_is_named(values, words):
    with pytest.raises(CollationError, match=words):
        collate_values(values, "the column")
