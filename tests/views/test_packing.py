"""Packed documents: the count of their tokens, and the arguments."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataporter.shards import ShardedDataset


@pytest.fixture
def documents(tmp_path):
    """Four documents of five tokens each."""
    tokens = pa.array([[0, 1, 2, 3, 4]] * 4, pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "part.parquet")
    return tmp_path


def test_counts_of_other_transforms_are_kept_apart(documents):
    def windows(transform):
        return len(ShardedDataset(documents, transform=transform).packed(1))

    assert windows(None) == 20
    assert windows(lambda row: {"tokens": row["tokens"][:2]}) == 8
    assert windows(lambda row: {"tokens": row["tokens"][:3]}) == 12
    assert windows(None) == 20
