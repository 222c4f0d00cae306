"""Batches of several datasets, joined."""

import numpy as np
import pytest
import torch

from dataporter.views.mixture import gather_of_parts

ENDS = np.array([3, 5])


def columns(**dtypes):
    """Two datasets of three and two rows, whose batches are dicts; the second has these dtypes."""
    from datasets import Dataset

    one = Dataset.from_dict({"x": [0, 1, 2], "y": [0.0, 0.5, 1.0]})
    return one, Dataset.from_dict({name: [kind(3), kind(4)] for name, kind in dtypes.items()})


@pytest.mark.imports_much
def test_dicts_of_columns_are_joined_in_the_order_of_the_indices():
    gather = gather_of_parts(columns(x=int, y=float), ENDS)
    batch = gather(np.array([4, 0, 3, 2]), None)
    assert list(batch) == ["x", "y"]
    assert torch.equal(batch["x"], torch.tensor([4, 0, 3, 2]))
    assert torch.equal(batch["y"], torch.tensor([4.0, 0.0, 3.0, 1.0], dtype=torch.float64))


@pytest.mark.imports_much
@pytest.mark.parametrize("second", [{"x": int}, {"x": float, "y": float}, {"x": int, "z": float}])
def test_dicts_of_other_columns_or_dtypes_are_not_joined(second):
    assert gather_of_parts(columns(**second), ENDS) is None


def test_parts_without_rows_in_a_batch_are_not_asked():
    parts = torch.arange(3), torch.arange(3, 5)
    assert gather_of_parts(parts, ENDS)(np.array([4, 3]), None).tolist() == [4, 3]
