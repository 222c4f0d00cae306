"""Folders of other packages as a dataset: listed, indexed, decoded where needed, read."""

import shutil

import portable
import pytest

from dataporter.errors import ShardsNotFoundError
from dataporter.shards.dataset import ShardedDataset


@pytest.mark.parametrize(
    ("kind", "name"), [("mds", "all"), ("mds", "zstd"), ("litdata", "full"), ("litdata", "batch")]
)
def test_a_folder_is_a_dataset_with_its_samples_in_order(fixtures, tmp_path, kind, name):
    shutil.copytree(fixtures / kind / name, tmp_path / "data")
    dataset = ShardedDataset(tmp_path / "data", cache=tmp_path / "cache")
    expected = portable.loads((tmp_path / "data" / "expected.json").read_text())
    assert len(dataset) == len(expected)
    for number, sample in enumerate(expected):
        portable.same(dataset[number], sample)


@pytest.mark.parametrize(("kind", "name"), [("mds", "hashed"), ("litdata", "raw")])
def test_a_listed_file_that_is_missing_is_an_error(fixtures, tmp_path, kind, name):
    shutil.copytree(fixtures / kind / name, tmp_path / "data")
    next(iter((tmp_path / "data").glob("*1.*"))).unlink()
    with pytest.raises(ShardsNotFoundError, match="is missing"):
        ShardedDataset(tmp_path / "data")
