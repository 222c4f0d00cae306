"""Packed documents: the count of their tokens, and the arguments."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataporter.shards import ShardedDataset
from dataporter.views import packed, packing


@pytest.fixture
def documents(tmp_path):
    """Four documents of five tokens each."""
    tokens = pa.array([[0, 1, 2, 3, 4]] * 4, pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "part.parquet")
    return tmp_path


def order_of(view, *, shuffle=True):
    return view.epoch_order(shuffle=shuffle, seed=1, step_size=8, world_size=1)


def test_only_shuffled_blocks_are_read_in_tracks(monkeypatch):
    data = [[number] * 3 for number in range(2000)]
    one_by_one = packed(data, 5)
    monkeypatch.setattr(packing, "_SHUFFLED", 100)
    in_blocks = packed(data, 5)
    assert order_of(in_blocks).tracks > 1
    assert order_of(in_blocks, shuffle=False).tracks == 1
    assert order_of(one_by_one).tracks == 1


def test_counts_of_other_transforms_are_kept_apart(documents):
    def windows(transform):
        return len(ShardedDataset(documents, transform=transform).packed(1))

    assert windows(None) == 20
    assert windows(lambda row: {"tokens": row["tokens"][:2]}) == 8
    assert windows(lambda row: {"tokens": row["tokens"][:3]}) == 12
    assert windows(None) == 20
