"""A dataset that gathers its own batches, in a loader."""

import numpy as np
import pytest
import torch

from dataporter import ResumableDataLoader


class Squares:
    """Sample i is i squared; batches are made at once, except of bad samples."""

    def __init__(self, bad=()):
        self.bad, self.gathered = set(bad), 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"sample {index} is damaged")
        return torch.tensor(index**2)

    def batch_gather(self):
        def gather(rows, empty):
            assert isinstance(rows, np.ndarray)
            if self.bad & set(rows.tolist()):
                raise OSError("damaged")
            self.gathered += 1
            return torch.from_numpy(rows**2)

        return gather


def test_whole_batches_come_from_a_dataset_that_gathers_them():
    data = Squares()
    assert torch.cat(list(ResumableDataLoader(data, 4))).tolist() == [i**2 for i in range(12)]
    assert data.gathered == 3


def test_a_collate_fn_is_given_samples():
    data = Squares()
    assert [len(batch) for batch in ResumableDataLoader(data, 4, collate_fn=list)] == [4, 4, 4]
    assert data.gathered == 0


def test_samples_of_a_batch_that_cannot_be_gathered_are_left_out_one_by_one():
    data = Squares(bad=[5])
    loader = ResumableDataLoader(data, 4, on_error="skip")
    found = torch.cat(list(loader)).tolist()
    assert found == [i**2 for i in range(12) if i != 5]
    assert [skipped.index for skipped in loader.skipped] == [5]
    assert data.gathered == 2
    with pytest.raises(OSError, match="damaged"):
        list(ResumableDataLoader(data, 4))
