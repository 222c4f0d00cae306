"""Default collation with the row named that does not fit."""

from collections import OrderedDict

import pytest
import torch
from torch.utils.data import default_collate

from dataporter import CollationError
from dataporter.training import DefaultCollator


@pytest.mark.parametrize(
    "rows",
    [
        [{"x": torch.zeros(2), "y": 1, "s": "a"}, {"x": torch.ones(2), "y": 2, "s": "b"}],
        [(torch.zeros(2), 1.5), (torch.ones(2), 2.5)],
        [torch.zeros(2), torch.ones(2)],
        [OrderedDict(a=1), OrderedDict(a=2)],
        [1, 2],
    ],
)
def test_rows_are_collated_as_torch_does(rows):
    found, wanted = DefaultCollator()(rows), default_collate(rows)
    assert type(found) is type(wanted)
    assert str(found) == str(wanted)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "the batch is empty"),
        (
            [{"x": torch.zeros(2)}, {"x": torch.zeros(3)}],
            r"column 'x' .* row 1 has shape \(3,\), row 0 has shape \(2,\)",
        ),
        ([torch.zeros(2), torch.zeros(3)], r"the rows cannot .* row 1 has shape \(3,\)"),
        ([{"x": 1}, {"y": 1}], "row 1 has the columns 'y', but row 0 has 'x'"),
        ([{"x": 1}, {"x": 1, "y": 1}], "row 1 has the columns 'x', 'y'"),
        ([{"x": None}], "column 'x' .* row 0 has None"),
        ([[1, 2], [1]], "row 1 has list of 1, row 0 has list of 2"),
        ([{"x": object()}], "column 'x' cannot be made into one batch: .*object"),
    ],
)
def test_the_row_that_does_not_fit_is_named(rows, said):
    with pytest.raises(CollationError, match=said):
        DefaultCollator()(rows)
